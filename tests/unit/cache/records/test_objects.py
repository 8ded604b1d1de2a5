"""Objects by unit: reused only if every file is unchanged and the object is intact; the newest are kept."""

from __future__ import annotations

import json
import os
import time

import pytest
from support.store import own_names

from opforge.cache import current_store
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.cache.records import objects
from opforge.cache.records.inputs import Dependency, Inputs, RootedPath
from opforge.cache.records.validity import Observation

UNIT = own_names.EXAMPLES["objects"]

ME = frozenset({os.geteuid()})


class Unit:
    """One source and its object."""

    def __init__(self, folder):
        self.folder, self.root_paths = folder, {"own": str(folder)}
        self.layout = Layout(str(folder / "store"))
        current_store.prepare(self.layout.root, ME)
        self.write("int a;")

    def write(self, text, name="a.cpp"):
        (self.folder / name).write_text(text)

    def inputs(self, *names):
        files = [Dependency("own", name, Disk().digest(str(self.folder / name))) for name in names or ("a.cpp",)]
        return Inputs(tuple(files), names=("b.h",), searched=(RootedPath("own", ""),))

    def keep(self, content=b"object"):
        (self.folder / "a.o").write_bytes(content)
        objects.keep(self.layout, UNIT, str(self.folder / "a.o"), self.inputs())

    def reuse(self):
        target = self.folder / "target.o"
        target.unlink(missing_ok=True)
        inputs = objects.reuse(self.layout, UNIT, Observation(self.root_paths, Disk()), str(target))
        assert (inputs is not None) == target.exists()
        return inputs and target.read_bytes()

    def stored(self, ending=".o"):
        return sorted((self.folder / "store" / "v2" / "objects" / UNIT).glob("*" + ending))


@pytest.fixture
def unit(tmp_path):
    return Unit(tmp_path)


def test_nothing_is_reused_if_nothing_was_kept(unit):
    assert unit.reuse() is None


def test_an_object_is_reused_while_its_files_are_the_same(unit):
    unit.keep()
    assert unit.reuse() == b"object"
    unit.write("int b;")
    assert unit.reuse() is None
    unit.write("int a;")
    assert unit.reuse() == b"object"


def test_an_object_is_not_reused_if_a_file_is_gone_or_a_header_has_appeared(unit):
    unit.keep()
    unit.write("", "b.h")
    assert unit.reuse() is None
    os.unlink(unit.folder / "b.h")
    assert unit.reuse() == b"object"
    os.unlink(unit.folder / "a.cpp")
    assert unit.reuse() is None


@pytest.mark.parametrize("content", [b"objecT", b"", b"object and more"])
def test_a_damaged_object_is_not_reused(unit, content):
    unit.keep()
    (path,) = unit.stored()
    path.chmod(0o600)
    path.write_bytes(content)
    assert unit.reuse() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"files": 3}', '{"files": [[1]]}', "[" * 100_000])
def test_a_damaged_record_is_not_used(unit, text):
    unit.keep()
    (path,) = unit.stored(".json")
    path.write_text(text)
    assert unit.reuse() is None


def test_a_record_that_names_no_file_is_not_used(unit):
    unit.keep()
    (path,) = unit.stored(".json")
    inputs = Inputs(()).to_json()
    key = key_of([UNIT, path.stem, inputs])
    path.write_text(json.dumps({"key": key, "inputs": inputs}))
    assert unit.reuse() is None


def test_a_record_without_its_object_is_not_used(unit):
    unit.keep()
    os.unlink(unit.stored()[0])
    assert unit.reuse() is None


def test_the_newest_objects_are_kept(unit):
    for number in range(objects.KEPT + 5):
        unit.write(f"int a{number};")
        unit.keep(f"object {number}".encode())
        record = max(unit.stored(".json"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(record, (number, number + 1_000_000))
    assert len(unit.stored()) == len(unit.stored(".json")) == objects.KEPT
    kept = {path.read_bytes() for path in unit.stored()}
    assert f"object {objects.KEPT + 4}".encode() in kept and b"object 0" not in kept


def test_an_object_that_is_reused_daily_counts_as_used_today(unit):
    unit.keep()
    (record,) = unit.stored(".json")
    for path in (record, record.parent):
        os.utime(path, (1, 1))
    assert unit.reuse() == b"object"
    used = [path.stat().st_mtime for path in (record, record.parent)]
    assert min(used) > time.time() - 60
    hour_ago = time.time() - 3600
    os.utime(record, (hour_ago, hour_ago))
    assert unit.reuse() == b"object"
    assert record.stat().st_mtime == pytest.approx(hour_ago, abs=1), "at most once a day: no write for each reuse"


def test_the_objects_that_were_used_last_are_kept(unit):
    for number in range(objects.KEPT):
        unit.write(f"int a{number};")
        unit.keep(f"object {number}".encode())
    for number, record in enumerate(sorted(unit.stored(".json"), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(record, (number + 1, number + 1))
    unit.write("int a0;")
    assert unit.reuse() == b"object 0"
    unit.write("int another;")
    unit.keep(b"another")
    unit.write("int a0;")
    assert unit.reuse() == b"object 0"
    unit.write("int a1;")
    assert unit.reuse() is None


def test_objects_are_private(unit):
    unit.keep()
    assert {path.stat().st_mode & 0o777 for path in (*unit.stored(), *unit.stored(".json"))} == {0o600}


def test_a_failure_to_keep_an_object_raises_nothing(unit):
    (unit.folder / "store" / "v2" / "objects").write_text("a file in the folder's place")
    unit.keep()
    assert unit.reuse() is None


def test_the_record_of_another_object_is_not_used(unit):
    """Two versions of one source: each object with the other's record would be linked for the wrong source."""
    unit.keep(b"first")
    unit.write("int b;")
    unit.keep(b"second")
    assert unit.reuse() == b"second"
    first, second = unit.stored(".json")
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])
    assert unit.reuse() is None
    first.write_bytes(contents[0])
    second.write_bytes(contents[1])
    assert unit.reuse() == b"second"


def test_a_record_that_has_lost_a_file_is_not_used(unit):
    unit.write("int h;", "h.h")
    (unit.folder / "a.o").write_bytes(b"object")
    objects.keep(unit.layout, UNIT, str(unit.folder / "a.o"), unit.inputs("a.cpp", "h.h"))
    assert unit.reuse() == b"object"
    (path,) = unit.stored(".json")
    record = json.loads(path.read_bytes())
    record["inputs"] = unit.inputs("a.cpp").to_json()
    path.write_text(json.dumps(record))
    assert unit.reuse() is None
