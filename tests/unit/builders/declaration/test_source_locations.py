"""Where sources and kernel folders are found: in the first root that has them."""

from __future__ import annotations

import os

import pytest
from support import text_files

import opforge
from opforge.builders.declaration import kernel_roots
from opforge.errors import BuilderError, SourceNotFoundError


def test_an_earlier_root_overrides_a_later_one(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        text_files.write(tmp_path / name, "b.cpp", "")
    text_files.write(tmp_path / "second", "c.cpp", "")
    roots = [kernel_roots.KernelRoot(name, str(tmp_path / name)) for name in ("first", "second")]
    assert kernel_roots.locate("op", ["b.cpp", "c.cpp"], roots) == (("first", "b.cpp"), ("second", "c.cpp"))


def test_an_absolute_path_is_named_below_the_nearest_root(tmp_path):
    (tmp_path / "inner").mkdir()
    path = text_files.write(tmp_path / "inner", "a.cpp", "")
    roots = [
        kernel_roots.KernelRoot("outer", str(tmp_path)),
        kernel_roots.KernelRoot("inner", str(tmp_path / "inner")),
    ]
    assert kernel_roots.locate("op", [path], roots) == (("inner", "a.cpp"),)
    assert kernel_roots.locate("op", [path], roots[:1]) == (("outer", "inner/a.cpp"),)
    assert kernel_roots.locate("op", [path], []) == (("system", path[1:]),)
    with pytest.raises(SourceNotFoundError):
        kernel_roots.locate("op", [str(tmp_path / "gone.cpp")], roots)


def test_a_package_that_is_not_installed_or_lacks_the_folder_is_named():
    with pytest.raises(
        SourceNotFoundError, match=r"\(the package no_such_package_here is not installed: an isolated build"
    ):
        kernel_roots.package_root("x", "no_such_package_here")
    with pytest.raises(SourceNotFoundError, match=r"^The op 'MineBuilder' names 'no_such_package_here/csrc'"):
        kernel_roots.prefixed_root("MineBuilder", "mine", "no_such_package_here", "csrc")
    with pytest.raises(SourceNotFoundError, match=r"names 'json/csrc', which does not exist"):
        kernel_roots.package_root("x", "json")


def test_a_source_that_is_no_file_is_said_to_be_none(tmp_path):
    (tmp_path / "folder.cpp").mkdir()
    os.mkfifo(tmp_path / "pipe.cpp")
    for name, state in (("folder.cpp", "is a folder"), ("pipe.cpp", "is not a regular file")):
        with pytest.raises(SourceNotFoundError, match=f"which {state}. Looked in:") as raised:
            opforge.load("op", [tmp_path / name])
        assert "Did you mean" not in str(raised.value), "what is there is nearest to itself"


def test_an_error_of_load_begins_with_the_name_that_the_call_gives(tmp_path):
    path = text_files.write(tmp_path, "a.cpp", "")
    with pytest.raises(BuilderError, match=r"^my_op: sources names 'a\.cpp' twice"):
        opforge.load("my_op", [path, path], abi="c")
