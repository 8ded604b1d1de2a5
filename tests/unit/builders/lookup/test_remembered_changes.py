"""What is remembered never leads to another entry than a look-up by content, whatever has changed meanwhile."""

from __future__ import annotations

import os
import shutil

import pytest
from support import sample_ops, text_files
from support.compilers import fake_compiler
from support.store.fake_lookups import LookedUpOp

from opforge.builders.lookup import remembered_lookups


def edit_header(op):
    header = op.source_folder / "value.h"
    old = header.stat()
    sample_ops.set_value(op.source_folder, 2)
    os.utime(header, ns=(old.st_atime_ns, old.st_mtime_ns))


def new_compiler_earlier_on_path(op):
    fake_compiler.create(op.early, version="13.1")


def compiler_replaced_in_place(op):
    fake_compiler.create(op.bin, version="13.1")


def compiler_touched(op):
    os.utime(op.compiler, (1, 1))


def linker_appears(op):
    text_files.write_script(op.early, "ld.fake", "echo a linker")


def assembler_appears_earlier_on_path(op):
    text_files.write_script(op.early, "as", "echo another assembler")


def source_in_an_earlier_root(op):
    (op.folder / "first").mkdir()
    text_files.write(op.folder / "first", "kernel.cpp", "int other;\n")


def include_folder_of_a_root_appears(op):
    (op.folder / "mine" / "include").mkdir()
    text_files.write(op.folder / "mine" / "include", "value.h", "#define VALUE 3\n")


def source_edited(op):
    text_files.write(op.folder / "mine", "kernel.cpp", "int edited;\n")


def source_gone(op):
    os.unlink(op.folder / "mine" / "kernel.cpp")


def entry_removed(op):
    shutil.rmtree(op.folder / "store" / "v2" / "entries" / op.entry_key)


def library_damaged(op):
    (library,) = (op.folder / "store" / "v2" / "entries" / op.entry_key).glob("*.so")
    library.chmod(0o700)
    library.write_text("b library")


def planning_code_changes(op):
    op.code.write_text("changed")
    op.patch.setattr(remembered_lookups, "_code", {})  # as in a process that starts after the edit


def path_is_shorter(op):
    op.patch.setenv("PATH", f"{op.bin}:/usr/bin:/bin")


def cxx_is_named(op):
    op.patch.setenv("CXX", fake_compiler.create(op.folder / "named", "c++-14", "14.1"))


def flags_from_the_environment(op):
    op.patch.setenv("CXXFLAGS", "-DX=1")


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
    library_damaged,
    planning_code_changes,
    path_is_shorter,
    cxx_is_named,
    flags_from_the_environment,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_makes_the_look_up_plan_again(tmp_path, monkeypatch, change):
    op = LookedUpOp(tmp_path, monkeypatch)
    text_files.write(tmp_path / "mine", "kernel.cpp", "int it;\n")
    op.cls = op.declare(sources=["plain.cpp", "kernel.cpp"])
    op.entry_key = op.publish()
    op.find()
    assert op.find() == (op.entry_key, False)
    change(op)
    if change is source_gone:
        with pytest.raises(FileNotFoundError, match=r"names 'kernel.cpp'"):
            op.find()
        return
    entry_key, planned = op.find()
    assert planned or entry_key is None
    assert entry_key == op.find_by_content()
    same = change in (compiler_touched, planning_code_changes, path_is_shorter)
    assert (entry_key == op.entry_key) is same
    assert op.find() == (entry_key, entry_key is None), "if there is an entry, it is remembered again"


def test_a_header_that_shadows_another_makes_the_look_up_plan_again(tmp_path, monkeypatch):
    op = LookedUpOp(tmp_path, monkeypatch)
    for name in ("near", "far"):
        (op.source_folder / name).mkdir(parents=True, exist_ok=True)
    text_files.write(op.source_folder / "far", "inner.h", "")
    op.cls = op.declare(include_dirs=["near", "far"])
    op.entry_key = op.publish(headers=("value.h", "far/inner.h"))
    op.find()
    assert op.find() == (op.entry_key, False)
    text_files.write(op.source_folder / "near", "inner.h", "// another\n")
    assert op.find() == (None, True)
    os.unlink(op.source_folder / "near" / "inner.h")
    assert op.find()[0] == op.entry_key


def test_an_include_folder_in_an_earlier_root_makes_the_look_up_plan_again(tmp_path, monkeypatch):
    op = LookedUpOp(tmp_path, monkeypatch)
    (tmp_path / "mine" / "extra").mkdir()
    op.cls = op.declare(include_dirs=["extra"])
    op.entry_key = op.publish()
    op.find()
    assert op.find() == (op.entry_key, False)
    (tmp_path / "first" / "extra").mkdir(parents=True)
    assert op.find() == (None, True)


def test_a_new_include_folder_of_a_root_makes_the_look_up_plan_again(op):
    """The build has read nothing from that root, so none of the recorded stamps is of a folder in it."""
    assert op.find() == (op.entry_key, False)
    include_folder_of_a_root_appears(op)
    assert op.find() == (None, True)
