"""Builds of the kinds of public projects in docs/compat.md ask for nothing that is not noticed."""

from __future__ import annotations

import pytest
from support import sample_ops, text_files
from support.compilers.observed_loads import observed
from support.observer.compare import compare

from opforge.builders.run import planned_build
from opforge.compat import cpp_extension

pytest.importorskip("torch", reason="pip install torch")
pytestmark = [
    pytest.mark.long("`make observe` runs all"),
    pytest.mark.timeout(900),  # pybind's and torch's headers take half a minute alone
]
PYBIND = """\
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) { return 2 * x; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }
"""
OPERATORS = """\
#include <Python.h>
#include <torch/script.h>
PyMODINIT_FUNC PyInit_@NAME@() { return nullptr; }
at::Tensor twice(const at::Tensor& x) { return 2 * x; }
static auto registry = torch::RegisterOperators().op("@NAME@::twice", &twice);
"""
MODULE = """\
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "module", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_@NAME@() { return PyModule_Create(&definition); }
"""


@pytest.fixture
def torch_extension(own_store):
    """torch.utils.cpp_extension on opforge, for one test."""
    import torch.utils.cpp_extension as module

    cpp_extension.install()
    yield module
    cpp_extension.uninstall()


@pytest.fixture
def outcomes(monkeypatch):
    """What is found in each build that is made."""
    found = []

    def judge(build):
        outcome = compare(build)
        found.append((list(map(str, outcome.findings)), outcome.gaps))

    monkeypatch.setattr(planned_build, "execute", observed(planned_build.execute, judge))
    return found


@pytest.mark.parametrize(
    ("text", "options"),
    [
        pytest.param(PYBIND, {}, id="pybind"),
        pytest.param(OPERATORS, {}, id="operators"),
        pytest.param(sample_ops.STABLE_SOURCE, {"py_limited_api": True}, id="stable"),
    ],
)
def test_an_extension_of_a_setup_script(tmp_path, monkeypatch, torch_extension, outcomes, text, options):
    import setuptools

    name = sample_ops.unique_name("ext")
    text_files.write(tmp_path, f"{name}.cpp", text.replace("@NAME@", name))
    monkeypatch.chdir(tmp_path)
    extension = torch_extension.CppExtension(name, [f"{name}.cpp"], **options)
    setuptools.setup(
        name=name,
        version="1",
        py_modules=[],
        ext_modules=[extension],
        cmdclass={"build_ext": torch_extension.BuildExtension},
        script_args=["-q", "build_ext", "--inplace"],
    )
    assert outcomes == [([], ())]


def test_a_module_that_is_loaded(tmp_path, torch_extension, outcomes):
    name = sample_ops.unique_name("ext")
    path = text_files.write(tmp_path, f"{name}.cpp", MODULE.replace("@NAME@", name))
    torch_extension.load(name=name, sources=[path])
    assert outcomes == [([], ())]
