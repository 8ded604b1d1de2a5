"""The `torch` ABI: ATen and pybind sources, tied to one torch and one Python. One module, built once a session."""

from __future__ import annotations

import os

import pytest
from support import child_processes, sample_ops, text_files

import opforge
from opforge.builders.declaration.machine import this_machine
from opforge.builders.inspection.elf import read_library
from opforge.builders.lookup.fit import host_problem
from opforge.errors import BuilderError, CompileError, LoadError

torch = pytest.importorskip("torch", reason="pip install torch")
TWICE = """\
#include <Python.h>
static PyObject* twice(PyObject*, PyObject* x) { return PyNumber_Add(x, x); }
static PyMethodDef functions[] = {{"twice", twice, METH_O, "Twice a number."}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "twice", nullptr, 0, functions};
PyMODINIT_FUNC PyInit_twice() { return PyModule_Create(&definition); }
"""
"""A module as pybind makes one, whose headers take seconds; tests/spine/test_builds.py has one of pybind's."""


@pytest.fixture(scope="session")
def module(tmp_path_factory, shared_store):
    """The class, loaded once."""
    folder = tmp_path_factory.mktemp("module")
    text_files.write(folder, "twice.cpp", TWICE)
    cls = sample_ops.builder_class(folder, "twice", abi="torch", extra_compile_args=["-O0"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(shared_store))
        entry = cls().build()
        return cls, entry, cls().load()


def test_a_module_is_built_and_imported(module, shared_store):
    _cls, entry, loaded = module
    assert entry.library.startswith(f"{shared_store}/"), "by this process, or by another that runs tests"
    assert loaded.twice(21) == 42
    assert loaded.twice.__doc__.strip().endswith("Twice a number.")
    assert loaded.__file__ == entry.library


def test_it_is_tied_to_this_torch_and_this_python(module):
    _cls, entry, _loaded = module
    assert entry.record["requires"] == {"python": f"cpython-3{os.sys.version_info.minor}", "torch": torch.__version__}
    assert entry.record["python_module"] is True
    assert host_problem(entry.record, this_machine()) is None


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        ({"torch": "2.11.0"}, f"it was built for torch 2.11.0, and torch {torch.__version__} is installed"),
        ({"python": "cpython-399"}, "it was built for cpython-399, and this is cpython-3"),
    ],
)
def test_under_another_torch_or_python_it_does_not_fit_and_says_so(module, requires, reason):
    _cls, entry, _loaded = module
    record = {**entry.record, "requires": {**entry.record["requires"], **requires}}
    assert host_problem(record, this_machine()).startswith(reason)


def test_a_hit_in_a_fresh_process_returns_the_module(module, shared_store):
    cls, _entry, _loaded = module
    code = """
import os, torch
from support import sample_ops
op = sample_ops.builder_class(os.environ["FOLDER"], "twice", abi="torch", extra_compile_args=["-O0"])().load()
print(op.twice(4))
"""
    folder = os.path.dirname(os.sys.modules[cls.__module__].__file__)
    env = {"FOLDER": folder, "OPFORGE_CACHE_DIR": str(shared_store)}
    assert child_processes.run_with_torch(code, env=env) == "8\n"


BLOCKS = """\
#include <torch/library.h>
TORCH_LIBRARY(@NAME@, m) {
  m.def("times(int x) -> int", [](int64_t x) { return 2 * x; });
  m.def("same(Tensor x) -> Tensor");
}
TORCH_LIBRARY_FRAGMENT(@NAME@, m) {
  m.def("plus(int x) -> int", [](int64_t x) { return 2 + x; });
}
// As torch's own examples have it, so that `import` opens the library; here nothing imports it.
extern "C" __attribute__((visibility("default"))) void* PyInit__C() { return nullptr; }
"""


@pytest.mark.long("compiles torch/extension.h for 10 s and more")
def test_a_taken_namespace_is_an_error_and_an_edited_op_is_loaded_beside_the_first(tmp_path):
    name = sample_ops.unique_name("blocks")
    path = text_files.write(tmp_path, f"{name}.cpp", BLOCKS.replace("@NAME@", name))
    holder = torch.library.Library(name, "DEF")
    with pytest.raises(LoadError, match=rf"register the namespace {name}.*use one of the two, or another namespace"):
        opforge.load(f"{name}_op", path)
    holder._destroy()
    first = opforge.load(f"{name}_op", path)
    assert first.times(4) == 8 == getattr(torch.ops, name).times(4)
    assert first.plus(4) == 6
    text_files.write(tmp_path, f"{name}.cpp", BLOCKS.replace("2", "3").replace("@NAME@", name))
    second = opforge.load(f"{name}_op", path)
    assert [second.times(4), second.plus(4), first.times(4), getattr(torch.ops, name).times(4)] == [12, 7, 8, 8]
    with pytest.raises(AttributeError, match=rf"the op '{name}_op' has no function 'minus' in torch.ops.{name}_"):
        second.minus
    assert opforge.load(f"{name}_op", path, fakes={"same": torch.empty_like}) is second
    assert second.same(torch.ones(3, device="meta")).shape == (3,)
    with pytest.raises(NotImplementedError):
        first.same(torch.ones(3, device="meta"))
    with pytest.raises(BuilderError, match=f"^{name}_op: fakes names 'minus'. torch does not have that op"):
        opforge.load(f"{name}_op", path, fakes={"minus": torch.empty_like})


def test_ops_that_are_registered_as_the_library_opens_have_one_version_a_process(tmp_path):
    text = """\
// The one function of torch's class that such a library cannot do without; its headers take long to compile.
extern "C" void declare() __asm__("_ZN3c1017RegisterOperators11registerOp_EONS0_7OptionsE");
extern "C" __attribute__((visibility("default"))) void (*used[VALUE])() = {&declare};
"""
    name = sample_ops.unique_name("opens")
    path = text_files.write(tmp_path, f"{name}.cpp", text.replace("VALUE", "1"))
    opforge.load(name, path, abi="torch")
    text_files.write(tmp_path, f"{name}.cpp", text.replace("VALUE", "2"))
    with pytest.raises(LoadError, match=r"another version of it is in this process\. Restart the process, or register"):
        opforge.load(name, path, abi="torch")


def test_a_module_of_another_name_is_refused_with_both_ways_out(tmp_path):
    text = """\
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "another", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_another() { return PyModule_Create(&definition); }
"""
    path = text_files.write(tmp_path, "named.cpp", text)
    with pytest.raises(CompileError, match=r"is named 'another', and the op .* Write PYBIND11_MODULE\(TORCH_EXTENSION"):
        opforge.load(sample_ops.unique_name("named"), path)
    assert opforge.load("another", path).__name__ == "another"


MODULE = """\
#include <Python.h>
extern "C" int helper(int x) { return x + 1; }
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "plain", nullptr, -1, nullptr};
extern "C" PyMODINIT_FUNC PyInit_@NAME@(void) {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "number", helper(6));
  return module;
}
"""


def test_a_module_in_plain_c_is_imported_and_names_no_library_of_torch(tmp_path):
    name = sample_ops.unique_name("plain_module")
    path = text_files.write(tmp_path, f"{name}.cpp", MODULE.replace("@NAME@", name))
    module = opforge.load(name, [path])
    assert module.number == 7
    assert [
        library for library in read_library(module.__file__)["needs"] if "torch" in library or "c10" in library
    ] == []


def test_a_module_that_uses_torch_names_its_libraries(tmp_path):
    name = sample_ops.unique_name("plain_module")
    uses = "namespace at { int get_num_threads(); }\n" + MODULE.replace("helper(6)", "at::get_num_threads()")
    path = text_files.write(tmp_path, f"{name}.cpp", uses.replace("@NAME@", name))
    module = opforge.load(name, [path])
    assert module.number == torch.get_num_threads()
    assert {"libtorch_cpu.so", "libc10.so"} <= {*read_library(module.__file__)["needs"]}
