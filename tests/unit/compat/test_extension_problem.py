"""Which extensions of a setup script opforge can build."""

from __future__ import annotations

from setuptools import Extension

from opforge.compat.cpp_extension.extension_builder import extension_problem


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
