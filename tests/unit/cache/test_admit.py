"""`admit` publishes a folder only if its record, its library and how it was built belong together."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support.store.fake_store import ME

from opforge.cache import admit, current_store
from opforge.cache.layout import Layout
from opforge.cache.records import entry as entries
from opforge.fast_path.library import BUILD, RECORD


@pytest.fixture
def empty_store(tmp_path):
    """The layout of an empty store."""
    layout = Layout(str(tmp_path / "empty"))
    current_store.prepare(layout.root, ME)
    return layout


@pytest.fixture
def finished(fake_store, tmp_path):
    """A folder as a build leaves it, to be admitted to another store."""
    return shutil.copytree(fake_store.layout.entry(fake_store.add("relu")), tmp_path / "finished")


def refusal(layout, folder):
    """Returns why a folder is not admitted. The store must stay empty."""
    with pytest.raises(ValueError, match=r".") as caught:
        admit.admit(layout, str(folder), ME)
    assert os.listdir(layout.path("entries")) == [] and not os.path.exists(layout.path("plans", "0" * 32))
    return str(caught.value)


RECORDS = {
    "another digest with the same beginning": (
        lambda r: r.update(sha256=r["sha256"][:-1] + ("0" if r["sha256"][-1] != "0" else "1")),
        "the library's digest differs from its record's",
    ),
    "another size": (lambda r: r.update(size=1), "bytes instead of"),
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


@pytest.mark.parametrize(("file", "case"), [*((RECORD, case) for case in RECORDS), *((BUILD, case) for case in BUILDS)])
def test_a_record_that_does_not_fit_its_entry_is_refused(finished, empty_store, file, case):
    change, text = (RECORDS if file == RECORD else BUILDS)[case]
    value = json.loads((finished / file).read_text())
    change(value)
    (finished / file).write_text(json.dumps(entries.with_record_key(value) if file == RECORD else value))
    assert text in refusal(empty_store, finished)


@pytest.mark.parametrize("name", [RECORD, BUILD])
@pytest.mark.parametrize("value", [b"[]", b"null", b"1", b'"text"', b"", b"{", b"\xff\xfe"])
def test_a_record_that_is_no_object_is_refused(finished, empty_store, name, value):
    (finished / name).write_bytes(value)
    assert f"its {name} cannot be used: " in refusal(empty_store, finished)


@pytest.mark.parametrize("name", [RECORD, BUILD])
def test_a_record_of_another_entry_is_refused(fake_store, finished, empty_store, name):
    other = fake_store.layout.entry(fake_store.add("adam"))
    shutil.copyfile(os.path.join(other, name), finished / name)
    assert (
        "expected record.json, build.json and adam" in (text := refusal(empty_store, finished))
        or "is not of its" in text
    )


def test_a_record_with_a_changed_field_is_refused(finished, empty_store):
    record = json.loads((finished / RECORD).read_text())
    changed = {**record, "portable": not record["portable"]}
    (finished / RECORD).write_text(json.dumps(changed))
    expected = entries.with_record_key(changed)["record_key"]
    problem = f"'record_key' is {record['record_key']}, and the key of the other fields is {expected}"
    assert refusal(empty_store, finished) == f"its record.json is damaged: {problem}"


def test_a_library_with_a_changed_byte_is_refused(finished, empty_store):
    (library,) = finished.glob("*.so")
    library.chmod(0o700)
    library.write_bytes(library.read_bytes()[:-1] + b"x")
    assert refusal(empty_store, finished) == "the library's digest differs from its record's"


@pytest.mark.parametrize("name", [RECORD, ".so"])
def test_an_entry_that_lacks_a_file_is_refused(finished, empty_store, name):
    (path,) = finished.glob(f"*{name}")
    path.unlink()
    with pytest.raises((ValueError, FileNotFoundError)):
        admit.admit(empty_store, str(finished), ME)
    assert os.listdir(empty_store.path("entries")) == []


@pytest.mark.parametrize("name", [RECORD, BUILD])
def test_deeply_nested_json_is_refused(finished, empty_store, name):
    (finished / name).write_text("[" * 200_000)
    assert f"its {name} cannot be used: it is nested too deeply" in refusal(empty_store, finished)


def test_an_admitted_library_cannot_be_written(finished, empty_store):
    entry, is_new = admit.admit(empty_store, str(finished), ME)
    modes = {name: os.stat(os.path.join(entry.folder, name)).st_mode & 0o777 for name in os.listdir(entry.folder)}
    assert is_new and {mode for name, mode in modes.items() if name.endswith(".so")} == {0o500}
    assert os.stat(entry.folder).st_mode & 0o077 == 0 and modes[RECORD] == modes[BUILD] == 0o600
