"""A remembered answer never differs from what the long way would have found, whatever has changed since."""

from __future__ import annotations

import os
import shutil

import pytest
from support import sample_ops, text_files
from support.compilers import fake_compiler
from support.store.fake_lookups import LookedUpOp

from opforge.builders import toolchains


def edit_header(world):
    header = world.op / "value.h"
    old = header.stat()
    sample_ops.set_value(world.op, 2)
    os.utime(header, ns=(old.st_atime_ns, old.st_mtime_ns))


def new_compiler_earlier_on_path(world):
    fake_compiler.create(world.early, version="13.1")


def compiler_replaced_in_place(world):
    fake_compiler.create(world.bin, version="13.1")


def compiler_touched(world):
    os.utime(world.compiler, (1, 1))


def linker_appears(world):
    text_files.write_script(world.early, "ld.fake", "echo a linker")


def assembler_appears_earlier_on_path(world):
    text_files.write_script(world.early, "as", "echo another assembler")


def source_in_an_earlier_root(world):
    (world.folder / "first").mkdir()
    text_files.write(world.folder / "first", "kernel.cpp", "int other;\n")


def include_folder_of_a_root_appears(world):
    (world.folder / "mine" / "include").mkdir()
    text_files.write(world.folder / "mine" / "include", "value.h", "#define VALUE 3\n")


def source_edited(world):
    text_files.write(world.folder / "mine", "kernel.cpp", "int edited;\n")


def source_gone(world):
    os.unlink(world.folder / "mine" / "kernel.cpp")


def entry_removed(world):
    shutil.rmtree(world.folder / "store" / "v1" / "entries" / world.result)


def library_spoiled(world):
    (library,) = (world.folder / "store" / "v1" / "entries" / world.result).glob("*.so")
    library.chmod(0o700)
    library.write_text("b library")


def planning_code_changes(world):
    edited = world.folder / "planner.py"  # as a process sees it that imports the file after the edit
    edited.touch()
    world.patch.setattr(toolchains, "plan_code", lambda spec: (str(edited),))


def path_is_shorter(world):
    world.patch.setenv("PATH", f"{world.bin}:/usr/bin:/bin")


def cxx_is_named(world):
    world.patch.setenv("CXX", fake_compiler.create(world.folder / "named", "c++-14", "14.1"))


def flags_from_the_environment(world):
    world.patch.setenv("CXXFLAGS", "-DX=1")


CHANGES = [
    edit_header,
    new_compiler_earlier_on_path,
    compiler_replaced_in_place,
    compiler_touched,
    linker_appears,
    assembler_appears_earlier_on_path,
    source_in_an_earlier_root,
    include_folder_of_a_root_appears,
    source_edited,
    source_gone,
    entry_removed,
    library_spoiled,
    planning_code_changes,
    path_is_shorter,
    cxx_is_named,
    flags_from_the_environment,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_sends_the_look_up_the_long_way(tmp_path, monkeypatch, change):
    world = LookedUpOp(tmp_path, monkeypatch)
    text_files.write(tmp_path / "mine", "kernel.cpp", "int it;\n")
    world.cls = world.declare(sources=["plain.cpp", "kernel.cpp"])
    world.result = world.publish()
    world.find()
    assert world.find() == (world.result, False)
    change(world)
    if change is source_gone:
        with pytest.raises(FileNotFoundError, match=r"names 'kernel.cpp'"):
            world.find()
        return
    found, planned = world.find()
    assert planned or found is None
    assert found == world.long_way()
    same = change in (compiler_touched, planning_code_changes, path_is_shorter)
    assert (found == world.result) is same, "what it answered"
    again = world.find()
    assert again == (found, found is None), "and is remembered anew"


def test_a_header_that_shadows_sends_the_look_up_the_long_way(tmp_path, monkeypatch):
    world = LookedUpOp(tmp_path, monkeypatch)
    for name in ("near", "far"):
        (world.op / name).mkdir(parents=True, exist_ok=True)
    text_files.write(world.op / "far", "inner.h", "")
    world.cls = world.declare(include_dirs=["near", "far"])
    world.result = world.publish(headers=("value.h", "far/inner.h"))
    world.find()
    assert world.find() == (world.result, False)
    text_files.write(world.op / "near", "inner.h", "// another\n")
    assert world.find() == (None, True)
    os.unlink(world.op / "near" / "inner.h")
    assert world.find()[0] == world.result


def test_an_include_folder_in_an_earlier_root_sends_the_look_up_the_long_way(tmp_path, monkeypatch):
    world = LookedUpOp(tmp_path, monkeypatch)
    (tmp_path / "mine" / "extra").mkdir()
    world.cls = world.declare(include_dirs=["extra"])
    world.result = world.publish()
    world.find()
    assert world.find() == (world.result, False)
    (tmp_path / "first" / "extra").mkdir(parents=True)
    assert world.find() == (None, True)


def test_an_include_folder_that_a_root_gains_sends_the_look_up_the_long_way(world):
    """Nothing was read from that root, so no folder of it is watched."""
    assert world.find() == (world.result, False)
    include_folder_of_a_root_appears(world)
    assert world.find() == (None, True)
