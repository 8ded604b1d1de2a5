"""The `torch` ABI: several versions of a library in one process, modules of one name, and blocks beside a module."""

from __future__ import annotations

import pytest
from support import sample_ops, text_files

import opforge
from opforge.compat import cpp_extension
from opforge.errors import LoadError

torch = pytest.importorskip("torch", reason="pip install torch")

PYBIND = """\
#include <pybind11/pybind11.h>
namespace py = pybind11;
struct Item { int number = VALUE; };
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("value", [] { return VALUE; });
  @CLASS@
}
"""
CLASS = 'py::class_<Item>(m, "Item"@LOCAL@).def(py::init<>()).def_readonly("number", &Item::number);'
LOCAL_CLASS = CLASS.replace("@LOCAL@", ", py::module_local()")
GLOBAL_CLASS = CLASS.replace("@LOCAL@", "")
EMPTY_MODULE = """\
#include <Python.h>
#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
PyMODINIT_FUNC JOINED(PyInit_, TORCH_EXTENSION_NAME)() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "empty", nullptr, 0, nullptr};
  return PyModule_Create(&definition);
}
"""
"""What kernels of the hub and of vLLM have, so that `import` opens their libraries."""


@pytest.fixture(autouse=True)
def compiled_quickly(monkeypatch):
    """The headers of pybind and of torch take half the time without optimization."""
    monkeypatch.setenv("CXXFLAGS", "-O0")


def write_module(folder, value, binding=""):
    """Writes a pybind source and returns its path."""
    folder.mkdir(exist_ok=True)
    return text_files.write(folder, "module.cpp", PYBIND.replace("VALUE", str(value)).replace("@CLASS@", binding))


@pytest.mark.long("compiles torch/extension.h for 10 s and more")
def test_an_edited_module_runs_its_own_code_and_so_does_the_first(tmp_path):
    name = sample_ops.unique_name("edited")
    first = opforge.load(name, write_module(tmp_path, 1, LOCAL_CLASS))
    second = opforge.load(name, write_module(tmp_path, 2, LOCAL_CLASS))
    assert (first.value(), second.value()) == (1, 2)
    assert (first.Item().number, second.Item().number) == (1, 2)
    assert first.__name__ == second.__name__ == second.Item.__module__ == name
    assert opforge.load(name, write_module(tmp_path, 1, LOCAL_CLASS)) is first


@pytest.mark.long("compiles torch/extension.h for 10 s and more")
def test_modules_of_one_name_in_two_projects_are_two_modules(tmp_path):
    modules = [opforge.load("_C", write_module(tmp_path / f"project{value}", value)) for value in (1, 2)]
    assert [module.value() for module in modules] == [1, 2]


@pytest.mark.long("compiles torch/extension.h for 10 s and more")
def test_a_class_that_pybind_has_already_is_an_error_with_two_ways_out(tmp_path):
    name = sample_ops.unique_name("classes")
    first = opforge.load(name, write_module(tmp_path, 1, GLOBAL_CLASS))
    assert first.value() == 1
    path = write_module(tmp_path, 2, GLOBAL_CLASS)
    with pytest.raises(LoadError, match=r'"Item" is already registered!.* with py::module_local\(\), or restart'):
        opforge.load(name, path)
    assert first.value() == 1


BLOCKS = """\
#include <torch/library.h>
TORCH_LIBRARY(@NAMESPACE@, m) { m.def("path(int x) -> int", [](int64_t x) { return VALUE * x; }); }
"""
STABLE_BLOCKS = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
static int64_t origin(int64_t x) { return VALUE + x; }
STABLE_TORCH_LIBRARY_FRAGMENT(@NAMESPACE@, m) { m.def("origin(int x) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(@NAMESPACE@, CompositeExplicitAutograd, m) { m.impl("origin", TORCH_BOX(&origin)); }
"""


@pytest.mark.long("compiles torch/extension.h for 10 s and more")
def test_blocks_beside_an_empty_module_load_as_their_ops(tmp_path, caplog):
    """Blocks of both kinds, in one library, that implement one namespace; the functions have names of attributes."""
    name, namespace = sample_ops.unique_name("hub"), sample_ops.unique_name("space")
    path = tmp_path / "hub.cpp"
    versions = []
    for value in ("2", "3"):
        text = (BLOCKS + STABLE_BLOCKS + EMPTY_MODULE).replace("@NAMESPACE@", namespace).replace("VALUE", value)
        text_files.write(tmp_path, path.name, text)
        versions.append(opforge.load(name, path))
    first, second = versions
    assert (first.path(5), first.origin(5)) == (10, 7)
    assert (second.path(5), second.origin(5)) == (15, 8), "a second version has a namespace of its own"
    assert getattr(torch.ops, namespace).path(5) == 10 and getattr(torch.ops, namespace).origin(5) == 7
    assert first.__file__ == first.__entry__.library and first.result == first.__entry__.key
    cpp_extension.install()
    try:
        from torch.utils import cpp_extension as torch_extension

        module = torch_extension.load(name, [str(path)])
        assert module.__file__ == second.__file__ and torch_extension.load(name, [str(path)]) is module
        caplog.clear()
        assert torch_extension.load(name, [str(path)], is_python_module=False) == second.__file__
        suffix = second.__entry__.suffix
        assert [record.getMessage() for record in caplog.records] == [
            f"{name}: torch.ops.{namespace} has the ops of the version that this process loaded first; those of this"
            f" version are torch.ops.{namespace}{suffix}: use them, or start a new process"
        ]
        assert getattr(torch.ops, namespace + suffix).path(5) == 15
    finally:
        cpp_extension.uninstall()


PATH_BLOCKS = STABLE_BLOCKS.replace("origin", "path").replace("VALUE + x", "VALUE * x")


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param(PATH_BLOCKS, id="stable"),
        pytest.param(BLOCKS, id="torch", marks=pytest.mark.long("compiles torch/library.h for 10 s and more")),
    ],
)
def test_two_packages_with_an_op_of_one_name_both_have_their_public_namespace(tmp_path, precompiled, blocks):
    name, namespaces = sample_ops.unique_name("ext"), [sample_ops.unique_name("package") for _ in range(2)]
    ops = []
    for value, namespace in enumerate(namespaces, 2):
        (tmp_path / namespace).mkdir()
        text = blocks.replace("@NAMESPACE@", namespace).replace("VALUE", str(value))
        ops.append(opforge.load(name, text_files.write(tmp_path / namespace, "ext.cpp", text)))
    for value, (namespace, op) in enumerate(zip(namespaces, ops, strict=True), 2):
        assert getattr(torch.ops, namespace).path(5) == op.path(5) == 5 * value


def test_an_initialisation_that_returns_no_module_is_none(tmp_path):
    name = sample_ops.unique_name("nothing")
    text = f'extern "C" __attribute__((visibility("default"))) void* PyInit_{name}() {{ return nullptr; }}\n'
    op = opforge.load(name, text_files.write(tmp_path, "nothing.cpp", text), abi="torch")
    assert op.__file__.endswith(".so")
