"""Which extensions of a setup script opforge can build."""

from __future__ import annotations

import pytest
from setuptools import Extension
from support import sample_ops, text_files

from opforge.compat.cpp_extension.extension_builder import error_text, extension_problem
from opforge.errors import CompileError


def test_an_extension_that_links_with_torch_can_be_built():
    assert extension_problem(Extension("a._C", ["a.cpp", "a.cu"], libraries=["torch"])) is None


def test_an_extension_with_other_sources_cannot_be_built():
    ext = Extension("a._C", ["a.cpp", "a.sycl"], libraries=["torch"])
    assert extension_problem(ext).startswith("a.sycl is not a C++ or CUDA source")


def test_an_extension_without_torch_cannot_be_built():
    assert extension_problem(Extension("a._C", ["a.cpp"])) == "it does not link with torch"


def test_an_extension_whose_device_code_is_linked_separately_cannot_be_built():
    ext = Extension("a._C", ["a.cpp", "a.cu"], libraries=["torch"])
    ext.extra_compile_args = {"cxx": [], "nvcc": [], "nvcc_dlink": ["-dlink"]}
    assert extension_problem(ext) == "its device code is linked separately (dlink)"


def test_a_header_that_is_not_found_brings_the_folders_that_do_not_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    extension = Extension("a._C", ["a.cpp"], include_dirs=["there", "third_party/include"])
    (tmp_path / "there").mkdir()
    text_files.write(tmp_path, "plain.cpp", '#include "mine.h"\n')
    with pytest.raises(CompileError) as failed:
        sample_ops.builder_class(tmp_path, "plain", abi="c")().build()
    expected = f"\ninclude_dirs has what is no folder in {tmp_path}: third_party/include"
    assert error_text(extension, failed.value) == str(failed.value) + expected
    extension.include_dirs.pop()
    assert error_text(extension, failed.value) == str(failed.value)
