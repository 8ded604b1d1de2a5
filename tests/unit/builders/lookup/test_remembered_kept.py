"""When a look-up is remembered, and when the next one uses it."""

from __future__ import annotations

import os

import pytest
from support import fake_disk, sample_ops, text_files
from support.compilers import fake_compiler
from support.store import remembered

from opforge.builders.declaration import kernel_roots
from opforge.builders.load_op import find
from opforge.builders.lookup import remembered_lookups
from opforge.builders.toolchains import find_toolchain
from opforge.builders.toolchains.discovery import probe
from opforge.cache.filesystem.disk import Disk
from opforge.cache.store import Store
from opforge.foundation import remembered_values_writer


def test_a_second_look_up_makes_no_plan_and_runs_no_compiler(op, monkeypatch):
    monkeypatch.setattr(probe, "try_run", lambda *_arguments, **_options: pytest.fail("a compiler was run"))
    assert op.find() == (op.entry_key, False)
    assert len(op.remembered_paths()) == 1


def test_a_paranoid_look_up_neither_remembers_nor_recalls(op, monkeypatch):
    op.forget()
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    assert op.find() == (op.entry_key, True)
    assert op.remembered_paths() == []


def test_a_memory_is_for_the_spec_that_a_builder_returns(op):
    plain = op.cls

    class WithVersion(plain):
        def spec(self):
            return super().spec()._replace(version="2")

    WithVersion.__module__ = plain.__module__
    op.cls = WithVersion
    assert op.find() == (None, True), "the published entry is of another version"
    op.cls = plain
    assert op.find() == (op.entry_key, False)


def test_nothing_is_remembered_for_a_toolchain_of_the_caller(op):
    op.forget()
    spec = op.cls().spec()
    assert find(spec, op.store(), find_toolchain=find_toolchain).entry.key == op.entry_key
    assert op.remembered_paths() == []


def test_nothing_is_remembered_if_a_folder_on_path_is_racy(op, monkeypatch):
    """A compiler that is replaced within one tick of a coarse clock keeps its stamp, and so does its folder."""
    op.forget()
    os.utime(op.early)
    monkeypatch.setattr(fake_disk.LaterDisk, "now_ns", Disk.now_ns)
    op.find()
    assert op.remembered_paths() == []


def test_nothing_is_remembered_if_an_input_is_racy(op):
    op.forget()
    just_now = fake_disk.LaterDisk().now_ns() - 10**9
    os.utime(op.source_folder / "value.h", ns=(just_now, just_now))
    assert op.find() == (op.entry_key, True)
    assert op.remembered_paths() == []


def test_a_change_between_the_plan_and_the_end_of_the_look_up_makes_the_next_look_up_plan_again(op, monkeypatch):
    op.forget()
    real = Store.get

    def get(*arguments):
        fake_compiler.create(op.early, version="13.1")
        text_files.write(op.folder, "mine/include", "")
        return real(*arguments)

    monkeypatch.setattr(Store, "get", get)
    op.find()
    monkeypatch.setattr(Store, "get", real)
    assert op.find() == (None, True)


def test_a_memory_that_cannot_be_written_is_no_error(op):
    op.forget()
    text_files.write(op.folder, "caches", "a file in the folder's place")
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, True)


def test_without_a_cache_folder_the_runtime_folder_is_used(op, monkeypatch, tmp_path):
    op.forget()
    text_files.write(op.folder, "caches", "a file in the folder's place")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert op.find() == (op.entry_key, True)
    assert op.find() == (op.entry_key, False)


def test_a_memory_in_a_folder_that_others_can_write_is_not_used(op):
    (path,) = op.remembered_paths()
    path.parent.chmod(0o777)
    assert op.find() == (op.entry_key, True)


def test_the_memory_is_bounded(op, monkeypatch):
    monkeypatch.setattr(remembered_values_writer, "MAX_LOOKUPS", 4)
    for number in range(12):
        monkeypatch.setenv("LANG", str(number))
        op.find()
    assert 2 <= len(op.remembered_paths()) <= 4
    assert op.find() == (op.entry_key, False), "the newest are kept"


def test_a_hit_notes_the_use_of_an_entry_once_an_hour(op):
    (remembered_path,) = op.remembered_paths()
    pointer = remembered.read(remembered_path)["value"]["pointer"]
    os.utime(pointer, (1, 1))
    op.find()
    assert os.stat(pointer).st_mtime > 1


def test_two_names_of_one_folder_are_compared_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "linked").symlink_to("a/b")
    stamp, other = (1, 2, 3, 4), (5, 6, 7, 8)
    a, b, linked = (str(tmp_path / name) for name in ("a", "a/b", "linked"))
    assert remembered_lookups.direct([(a, stamp), (b, other), (f"{b}/..", stamp)]) == [(a, stamp), (b, other)]
    assert remembered_lookups.direct([(b, other), (f"{b}/../c", stamp)]) == [(b, other), (f"{a}/c", stamp)]
    unwatched = [(a, stamp), (f"{b}/..", stamp)]
    assert remembered_lookups.direct(unwatched) == unwatched, "nothing would show that a/b has become a link"
    behind_link = [(linked, other), (f"{linked}/..", stamp)]
    assert remembered_lookups.direct(behind_link) == behind_link, "it is the folder above what the link leads to"
    gone = [(a, stamp), (f"{a}/none", remembered_lookups.ABSENT), (f"{a}/none/..", remembered_lookups.ABSENT)]
    assert remembered_lookups.direct(gone) == gone, "there is nothing above a folder that is missing"
    names = [(b, other), (f"{b}/..c", stamp)]
    assert remembered_lookups.direct(names) == names


def test_of_sources_below_a_missing_folder_the_folder_is_looked_for(tmp_path):
    (tmp_path / "late" / "cpu").mkdir(parents=True)
    for name in ("a.cpp", "b.cpp"):
        text_files.write(tmp_path / "late" / "cpu", name, "")
    roots = [kernel_roots.KernelRoot(name, str(tmp_path / name), include="") for name in ("early", "late")]
    (tmp_path / "early").mkdir()
    cls = sample_ops.builder_class(tmp_path / "own", "plain", abi="c", sources=["cpu/a.cpp", "cpu/b.cpp"])
    (tmp_path / "own").mkdir()
    cls.kernel_roots = roots
    early = str(tmp_path / "early" / "cpu")
    assert [path for path in remembered_lookups.absent_paths(cls().spec()) if "early" in path] == [early]
    (tmp_path / "early" / "cpu").mkdir()
    paths = [path for path in remembered_lookups.absent_paths(cls().spec()) if "early" in path]
    assert paths == [f"{early}/a.cpp", f"{early}/b.cpp"]
