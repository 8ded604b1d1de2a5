"""The check of an entry's library: what is trusted by its stamp, what is hashed, whose files are refused."""

from __future__ import annotations

import hashlib
import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.owners import STRANGER
from support.store.fake_store import ME

from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import entry_name
from opforge.cache.records import entry as entries
from opforge.fast_path import library
from opforge.fast_path import library as warm_library
from opforge.foundation.remembered_values import UNREADABLE


def library_of(folder, size, **fields):
    """Writes a library of `size` zero bytes; returns its entry, with these fields in its record."""
    content = bytes(size)
    path = folder / "a.so"
    path.write_bytes(content)
    path.chmod(0o500)
    record = {"file": "a.so", "size": size, "sha256": hashlib.sha256(content).hexdigest(), **fields}
    return warm_library.Entry("key", str(folder), record, "cache")


def test_a_large_library_is_trusted_by_its_stamp_and_hashed_on_request(tmp_path):
    entry = library_of(tmp_path, warm_library.FULL_CHECK_BYTES + 1, sha256="00")
    entry.record["stamp"] = list(Disk().stamp(entry.library))
    assert warm_library.integrity_problem(entry, ME) is None
    assert warm_library.integrity_problem(entry, ME, full=True) == "the library's digest differs from its record's"
    entry.record["stamp"][1] += 1
    assert warm_library.integrity_problem(entry, ME) == "the library's digest differs from its record's"


def test_a_small_library_is_hashed_whatever_its_stamp(tmp_path):
    entry = library_of(tmp_path, warm_library.FULL_CHECK_BYTES, sha256="00")
    entry.record["stamp"] = list(Disk().stamp(entry.library))
    assert warm_library.integrity_problem(entry, ME) is not None


def test_an_entry_of_a_stranger_is_refused(tmp_path):
    entry = library_of(tmp_path, 10)
    problem = warm_library.integrity_problem(entry, frozenset({os.geteuid() + 1}))
    assert problem == "its folder is a link, a file, or another user's"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners: run the tests as root")
def test_a_library_of_a_stranger_is_refused_even_in_a_trusted_folder(tmp_path):
    entry = library_of(tmp_path, 10)
    os.chown(entry.library, STRANGER, STRANGER)
    text = f"the library belongs to user {STRANGER}, who is not trusted here"
    assert warm_library.integrity_problem(entry, ME | {0}) == text
    assert warm_library.integrity_problem(entry, ME | {0, STRANGER}) is None


def test_a_zero_byte_in_a_damaged_record_is_a_problem_and_no_exception(tmp_path):
    entry = library_of(tmp_path, 10, file="a\0.so")
    why = r"\((\w+: )?embedded null (byte|character in path)\)"  # the words differ by the version of Python
    assert re.fullmatch(f"the library cannot be opened {why}", warm_library.integrity_problem(entry, ME))
    entry = entry._replace(folder=f"{tmp_path}/\0")
    assert re.fullmatch(f"its folder cannot be read {why}", warm_library.integrity_problem(entry, ME))


TEXTS = {name: name for name in (*library.TEXTS, "requires")}
RECORD = {**TEXTS, "format": 1, "sha256": "0" * 64, "seconds": 1.25, "requires": {"torch": "2.13\u00e9"}}
RECORD |= {"file": "relu.so", "size": 10, "python_module": False, "exports": ["relu"], "needs": []}
FORMS = {
    "as it is written": entries.record_text,
    "as older ones were": lambda record: json.dumps(entries.with_record_key(record), separators=(",", ":")).encode(),
    "indented": lambda record: json.dumps(entries.with_record_key(record), indent=2).encode(),
}


def folder_with(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("store") / entry_name(RECORD["key"], RECORD["sha256"])
    folder.mkdir()
    (folder / "record.json").write_bytes(text)
    return str(folder)


FILES = ("", ".", "..", "../relu.so", "sub/relu.so", "/relu.so", "relu.so/", None, 1)
NO_RECORDS = [None, [], "record", {}, *({**RECORD, "file": file} for file in FILES)]
NO_RECORDS += [{**RECORD, "format": number} for number in (0, library.READ_FORMATS.stop, "1", None)]
NO_RECORDS += [{**RECORD, name: None} for name in (*library.TEXTS, "size", "python_module", "exports", "needs")]
NO_RECORDS += [{**RECORD, "size": "10"}, {**RECORD, "exports": [1]}, {**RECORD, "needs": [None]}]


@pytest.mark.parametrize("value", NO_RECORDS)
def test_what_is_no_record_or_names_a_file_outside_of_its_entry_is_not_read_as_one(value):
    assert library.is_record(RECORD)
    assert not library.is_record(value)


@pytest.mark.parametrize("form", FORMS)
def test_a_record_is_read_in_any_form_of_json(tmp_path_factory, form):
    text = FORMS[form](RECORD)
    assert entries.read_record(folder_with(tmp_path_factory, text)) == entries.with_record_key(RECORD)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_a_record_with_another_byte_is_read_only_if_it_says_the_same(tmp_path_factory, form, data):
    text = bytearray(FORMS[form](RECORD))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        record = entries.read_record(folder_with(tmp_path_factory, bytes(text)))
    except UNREADABLE:
        record = None
    assert record in (None, entries.with_record_key(RECORD))


def test_two_entries_of_one_library_have_namespaces_of_their_own(tmp_path):
    """An edited comment changes the key of what was read, and no byte of the library."""
    names = [entry_name(f"{digit}" * 32, "f" * 64) for digit in "ab"]
    suffixes = {warm_library.Entry(name, str(tmp_path), {}, "cache").suffix for name in names}
    assert len(suffixes) == 2 and all(re.fullmatch(r"_\w+", suffix) for suffix in suffixes)
