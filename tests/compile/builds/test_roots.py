"""Kernel roots with a real compiler: another package's kernels, and which of two files of one name is compiled."""

from __future__ import annotations

import ctypes
import os

import pytest
from support import sample_ops, text_files

from opforge.builders.declaration import kernel_roots


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with kernels in its csrc folder."""
    folder = tmp_path / "site" / "kernels_of_another"
    (folder / "csrc" / "include").mkdir(parents=True)
    text_files.write(folder, "__init__.py", "raise ImportError('must not be imported')")
    text_files.write(
        folder / "csrc", "theirs.cpp", f"#include <theirs.h>\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
    )
    text_files.write(folder / "csrc" / "include", "theirs.h", "#define VALUE 11\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


def test_kernels_of_another_package_are_read_in_place(folder, package):
    folder.mkdir()
    root = kernel_roots.package_root("theirs", "kernels_of_another")
    cls = sample_ops.builder_class(folder, "theirs", abi="c", kernel_roots=[root])
    assert cls().load().value() == 11
    assert os.listdir(folder) == []
    text_files.write(package / "csrc" / "include", "theirs.h", "#define VALUE 12\n")
    assert cls().load().value() == 12


@pytest.mark.parametrize("attribute", ["include_dirs", "kernel_roots"])
def test_a_root_within_another_has_the_same_name_in_the_library_as_one_elsewhere(tmp_path, attribute):
    """The key is the same for both, and so must the library be."""
    texts = []
    for folder, inner in (("first", "first/parts"), ("second", "parts")):
        (tmp_path / inner / "include").mkdir(parents=True)
        (tmp_path / folder).mkdir(exist_ok=True)
        text_files.write(tmp_path / inner / "include", "there.h", "inline const char* there() { return __FILE__; }\n")
        source = f"#include <there.h>\n{sample_ops.EXPORT} const char* where() {{ return there(); }}\n"
        text_files.write(tmp_path / folder, "plain.cpp", source)
        roots = {
            "include_dirs": [f"{tmp_path}/{inner}/include"],
            "kernel_roots": [kernel_roots.KernelRoot("mine", f"{tmp_path}/{inner}")],
        }
        builder = sample_ops.builder_class(tmp_path / folder, "plain", abi="c", **{attribute: roots[attribute]})()
        function = ctypes.CDLL(builder.build(force=True).library).where
        function.restype = ctypes.c_char_p
        texts.append(function())
    assert texts[0] == texts[1]
