"""Objects by unit: taken only where every file is as it was and the object is whole; the newest are kept."""

from __future__ import annotations

import json
import os

import pytest

from opforge.cache import current
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.cache.records import objects
from opforge.cache.records.inputs import Dependency, Inputs, RootedPath

ME = frozenset({os.geteuid()})


class Unit:
    """One source and its object."""

    def __init__(self, folder):
        self.folder, self.roots = folder, {"own": str(folder)}
        self.place = Layout(str(folder / "store"))
        current.prepare(self.place.root, ME)
        self.write("int a;")

    def write(self, text, name="a.cpp"):
        (self.folder / name).write_text(text)

    def inputs(self, *names):
        files = [Dependency("own", name, Disk().digest(str(self.folder / name))) for name in names or ("a.cpp",)]
        return Inputs(tuple(files), names=("b.h",), searched=(RootedPath("own", ""),))

    def keep(self, content=b"object"):
        (self.folder / "a.o").write_bytes(content)
        objects.keep(self.place, "unit", str(self.folder / "a.o"), self.inputs())

    def reuse(self):
        target = self.folder / "target.o"
        target.unlink(missing_ok=True)
        found = objects.reuse(self.place, "unit", self.roots, Disk(), {}, str(target))
        assert (found is not None) == target.exists()
        return found and target.read_bytes()

    def stored(self, ending=".o"):
        return sorted((self.folder / "store" / "v1" / "objects" / "unit").glob("*" + ending))


@pytest.fixture
def unit(tmp_path):
    return Unit(tmp_path)


def test_nothing_kept_is_nothing_found(unit):
    assert unit.reuse() is None


def test_what_was_kept_is_found_while_its_files_are_the_same(unit):
    unit.keep()
    assert unit.reuse() == b"object"
    unit.write("int b;")
    assert unit.reuse() is None
    unit.write("int a;")
    assert unit.reuse() == b"object"


def test_a_file_that_is_gone_or_a_name_that_appears_is_another_object(unit):
    unit.keep()
    unit.write("", "b.h")
    assert unit.reuse() is None
    os.unlink(unit.folder / "b.h")
    assert unit.reuse() == b"object"
    os.unlink(unit.folder / "a.cpp")
    assert unit.reuse() is None


@pytest.mark.parametrize("harm", [b"objecT", b"", b"object and more"])
def test_a_damaged_object_is_not_used(unit, harm):
    unit.keep()
    (path,) = unit.stored()
    path.chmod(0o600)
    path.write_bytes(harm)
    assert unit.reuse() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"files": 3}', '{"files": [[1]]}', "[" * 100_000])
def test_a_garbled_record_is_not_used(unit, text):
    unit.keep()
    (path,) = unit.stored(".json")
    path.write_text(text)
    assert unit.reuse() is None


def test_a_record_that_names_no_file_vouches_for_nothing(unit):
    unit.keep()
    (path,) = unit.stored(".json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "files": []}))
    assert unit.reuse() is None


def test_a_record_without_its_object_is_not_used(unit):
    unit.keep()
    os.unlink(unit.stored()[0])
    assert unit.reuse() is None


def test_the_newest_are_kept(unit):
    for number in range(objects.KEPT + 5):
        unit.write(f"int a{number};")
        unit.keep(f"object {number}".encode())
        record = max(unit.stored(".json"), key=lambda one: one.stat().st_mtime_ns)
        os.utime(record, (number, number + 1_000_000))
    assert len(unit.stored()) == len(unit.stored(".json")) == objects.KEPT
    kept = {path.read_bytes() for path in unit.stored()}
    assert f"object {objects.KEPT + 4}".encode() in kept and b"object 0" not in kept


def test_objects_are_private(unit):
    unit.keep()
    assert {path.stat().st_mode & 0o777 for path in (*unit.stored(), *unit.stored(".json"))} == {0o600}


def test_an_object_that_cannot_be_kept_harms_nothing(unit):
    (unit.folder / "store" / "v1" / "objects").write_text("a file in the folder's place")
    unit.keep()
    assert unit.reuse() is None
