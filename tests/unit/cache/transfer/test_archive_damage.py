"""A damaged archive, or one with wrong records, is refused with the reason."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random

import pytest
from support.store.fake_archives import entry_keys, members, refusal_of, rewrite
from support.store.fake_store import ME

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.records import entry as entries
from opforge.cache.transfer import archive
from opforge.warm import library as warm_library

CUT = "cannot be imported: its compressed data is cut short or damaged ("
NO_ARCHIVE = "cannot be imported: it is not a tar archive, or its beginning is damaged. "


def test_an_archive_that_is_cut_short_is_refused_unless_only_padding_is_missing(packed, tmp_path):
    path, keys = packed
    with open(path, "rb") as file:
        content = file.read()
    needed = len(content.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(0, needed, 256), needed]:
        with open(path, "wb") as file:
            file.write(content[:length])
        layout = Layout(str(tmp_path / f"cut-{length}"))
        current.prepare(layout.root, ME)
        error = refusal_of(layout, path)
        assert entry_keys(layout) == set(keys[: error.kept])
    with open(path, "wb") as file:
        file.write(content[: needed + 512])
    layout = Layout(str(tmp_path / "enough"))
    current.prepare(layout.root, ME)
    assert len(archive.unpack(layout, path, ME)) == 2


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bz2", "lzma"])
def test_a_compressed_archive_that_is_damaged_is_refused(packed, empty_store, compress):
    path, _keys = packed
    with open(path, "rb") as file:
        content = compress(file.read())
    for damaged in (content[: len(content) // 2], content[:40] + b"\xff\x00\xff" * 9 + content[67:], content[:10]):
        with open(path, "wb") as file:
            file.write(damaged)
        error = refusal_of(empty_store, path)
        assert CUT in str(error) or NO_ARCHIVE in str(error)
        assert entry_keys(empty_store) == set()


@pytest.mark.parametrize(
    "content", [b"", b"not an archive", b"\0" * 511, random.Random(0).randbytes(2048), b"\x1f\x8b", b"BZh9"]
)
def test_a_file_that_is_no_archive_is_refused(tmp_path, empty_store, content):
    (tmp_path / "ops.tar").write_bytes(content)
    error = refusal_of(empty_store, tmp_path / "ops.tar")
    assert error.kept == 0 and (CUT if content[:2] in (b"\x1f\x8b", b"BZ") else NO_ARCHIVE) in str(error)


def test_an_archive_that_does_not_exist_is_reported(tmp_path, empty_store):
    assert "it cannot be opened (No such file or directory)" in str(refusal_of(empty_store, tmp_path / "gone.tar"))


def change_json(path, name, change):
    """Changes record.json or build.json of the archive's first entry."""
    parts = members(path)
    index = next(number for number, (member, _content) in enumerate(parts) if member.name.endswith(name))
    value = json.loads(parts[index][1])
    change(value)
    if name == warm_library.RECORD:
        value = entries.with_record_key(value)
    parts[index] = (parts[index][0], json.dumps(value).encode())
    rewrite(path, parts)


RECORDS = {
    "another digest": (lambda r: r.update(sha256="0" * 64), "describes another entry"),
    "another digest with the same beginning": (
        lambda r: r.update(sha256=r["sha256"][:-1] + ("0" if r["sha256"][-1] != "0" else "1")),
        "the library's digest differs from its record's",
    ),
    "another size": (lambda r: r.update(size=1), "bytes instead of"),
    "another key": (lambda r: r.update(key="0" * 32), "describes another entry"),
    "another plan": (
        lambda r: r.update(plan="0" * 32),
        "its record.json is not of its build.json: 'plan' and the inputs there give the key ",
    ),
    "another key of its inputs": (
        lambda r: r.update(inputs_key="0" * 32),
        f", and 'inputs_key' there is {'0' * 32}",
    ),
    "no inputs": (lambda r: r.pop("inputs"), "its record.json cannot be used: 'inputs' is missing"),
    "inputs of another form": (
        lambda r: r["inputs"].update(files=[["own"]]),
        "'inputs.files[0]' is a list of 1 item: expected",
    ),
    "no format": (lambda r: r.pop("format"), "'format' is missing"),
    "a format of the future": (lambda r: r.update(format=1000), "'format' is 1000, and this opforge reads 1: update"),
    "no op": (lambda r: r.pop("op"), "'op' is missing"),
    "an op that is no name": (lambda r: r.update(op="\x1b[2J"), "'op' is '\\x1b[2J': expected a name"),
    "an op that is no text": (lambda r: r.update(op="\ud800"), "surrogates not allowed"),
    "no library": (lambda r: r.update(file="other.so"), "expected record.json, build.json and other.so alone"),
    "a file elsewhere": (lambda r: r.update(file="../x.so"), "'file' is '../x.so': expected the name of a library"),
    "a description elsewhere": (
        lambda r: r.update(description="../../x"),
        "'description' is '../../x': expected 32 hex digits",
    ),
    "a plan elsewhere": (
        lambda r: r.update(plan="../../x"),
        "'plan' is '../../x': expected 32 hex digits",
    ),
    "nothing": (lambda r: r.clear(), "is missing"),
}
"""Changes of record.json, and what the error says."""
OTHER_INPUTS = "its build.json is not of its record.json: the key of 'inputs' is "
BUILDS = {
    "another input": (lambda b: b["inputs"]["files"][0].__setitem__(2, "0" * 64), OTHER_INPUTS),
    "another name that was looked for": (lambda b: b["inputs"]["names"].append("x.h"), OTHER_INPUTS),
    "no inputs": (lambda b: b.pop("inputs"), "its build.json cannot be used: 'inputs' is missing"),
    "nothing": (lambda b: b.clear(), "'inputs' is missing"),
}
"""The same for build.json."""


@pytest.mark.parametrize(
    "name", [("record.json", name) for name in RECORDS] + [("build.json", name) for name in BUILDS]
)
def test_a_record_that_does_not_fit_its_entry_is_refused(packed, empty_store, name):
    path, _keys = packed
    file, case = name
    change, text = (RECORDS if file == "record.json" else BUILDS)[case]
    change_json(path, file, change)
    assert text in str(refusal_of(empty_store, path))
    assert entry_keys(empty_store) == set()
    assert not os.path.exists(empty_store.path("plans", "0" * 32))


@pytest.mark.parametrize("name", ["record.json", "build.json"])
@pytest.mark.parametrize("value", [b"[]", b"null", b"1", b'"text"', b"", b"{", b"\xff\xfe"])
def test_a_record_that_is_no_object_is_refused(packed, empty_store, name, value):
    path, _keys = packed
    rewrite(path, [(member, value if member.name.endswith(name) else body) for member, body in members(path)])
    assert " is damaged: its " in str(refusal_of(empty_store, path))
    assert entry_keys(empty_store) == set()


@pytest.mark.parametrize("name", ["record.json", "build.json"])
def test_a_record_of_another_entry_is_refused(packed, empty_store, name):
    path, _keys = packed
    parts = members(path)
    records = [content for member, content in parts if member.name.endswith(name)]
    rewrite(path, [(member, records.pop() if member.name.endswith(name) else body) for member, body in parts])
    assert " is damaged: " in str(refusal_of(empty_store, path))
    assert entry_keys(empty_store) == set()


def test_a_record_with_a_changed_field_is_refused(packed, empty_store):
    path, _keys = packed
    parts = members(path)
    index = next(number for number, (member, _content) in enumerate(parts) if member.name.endswith("record.json"))
    record = json.loads(parts[index][1])
    changed = {**record, "portable": not record["portable"]}
    parts[index] = (parts[index][0], json.dumps(changed).encode())
    rewrite(path, parts)
    expected = entries.with_record_key(changed)["record_key"]
    problem = f"'record_key' is {record['record_key']}, and the key of the other fields is {expected}"
    assert f"its record.json is damaged: {problem}" in str(refusal_of(empty_store, path))


@pytest.mark.parametrize("name", ["record.json", "build.json", ".so"])
def test_an_entry_that_lacks_a_file_is_refused(packed, empty_store, name):
    path, _keys = packed
    rewrite(path, [part for part in members(path) if not part[0].name.endswith(name)])
    assert "does not hold a record and its library" in str(refusal_of(empty_store, path))
    assert entry_keys(empty_store) == set()


@pytest.mark.parametrize("name", ["record.json", "build.json"])
def test_deeply_nested_json_is_refused(packed, empty_store, name):
    path, _keys = packed
    parts = members(path)
    rewrite(path, [(member, b"[" * 200_000 if member.name.endswith(name) else body) for member, body in parts])
    assert f"its {name} cannot be used: it is nested too deeply" in str(refusal_of(empty_store, path))


def test_a_store_that_cannot_be_written_is_an_archive_error(packed, empty_store, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "_write", full)
    assert "No space left on device" in str(refusal_of(empty_store, packed[0]))
