"""Unmodified callers of torch.utils.cpp_extension on opforge: modules, ops, refusals, errors."""

from __future__ import annotations

import json
import logging
import os
import subprocess

import pytest
from support import child_processes, sample_ops, text_files

from opforge import errors
from opforge.compat import cpp_extension

torch = pytest.importorskip("torch", reason="pip install torch")

MODULE = """\
#include <Python.h>
static PyObject* value(PyObject*, PyObject*) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "module", nullptr, -1, methods};
#define NAMED(name) PyInit_##name
#define INIT(name) NAMED(name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
"""
"""A Python module in plain C++, which compiles in a second: pybind's headers take fifteen."""


@pytest.fixture
def theirs():
    """torch.utils.cpp_extension with opforge beneath it, for one test."""
    import torch.utils.cpp_extension as module

    cpp_extension.install()
    yield module
    cpp_extension.uninstall()


@pytest.fixture
def source(tmp_path):
    """Writes a source and gives a fresh name and the path."""

    def write(text=MODULE):
        name = sample_ops.unique_name("ext")
        return name, text_files.write(tmp_path, f"{name}.cpp", text)

    return write


def test_load_gives_the_module_from_the_store_and_then_again(theirs, source, own_store):
    name, path = source()
    module = theirs.load(name=name, sources=[path], extra_cflags=["-DVALUE=41"])
    assert module.value() == 41
    assert module.__file__.startswith(str(own_store))
    assert theirs.load(name, path, ["-DVALUE=41"]) is module


def test_it_is_a_hit_in_another_process_that_bound_the_name_before(theirs, source, own_store, tmp_path):
    name, path = source()
    theirs.load(name, [path], extra_cflags=["-DVALUE=5"])
    code = """
import os
from torch.utils.cpp_extension import load as jit
import opforge.compat.cpp_extension
opforge.compat.cpp_extension.install()
print(jit(os.environ["NAME"], [os.environ["SOURCE"]], extra_cflags=["-DVALUE=5"]).value())
"""
    events = tmp_path / "events"
    env = {"NAME": name, "SOURCE": path, "OPFORGE_CACHE_DIR": str(own_store), "OPFORGE_LOG": str(events)}
    assert child_processes.run_python(code, env=env) == "5\n"
    assert [json.loads(line)["event"] for line in events.read_text().splitlines()] == ["hit", "load"]


def test_flags_are_split_as_a_shell_would_and_those_for_device_code_alone_are_left_out(theirs, source):
    name, path = source(MODULE.replace("VALUE", "VALUE + sizeof(TEXT)"))
    flags = ["-O1 -DVALUE=1", r"-DTEXT=\"ab\""]
    module = theirs.load(name, [path], extra_cflags=flags, extra_cuda_cflags=["--use_fast_math"])
    assert module.value() == 4


def test_an_include_folder_that_does_not_exist_is_left_out_as_compilers_do(theirs, source, tmp_path):
    name, path = source()
    folders = [str(tmp_path), str(tmp_path / "missing")]
    assert theirs.load(name, [path], extra_cflags=["-DVALUE=2"], extra_include_paths=folders).value() == 2


def test_ops_without_a_module_are_registered_and_the_librarys_path_comes_back(theirs, source, own_store):
    namespace = sample_ops.unique_name("relu")
    name, path = source(sample_ops.STABLE_SOURCE.replace("@NAME@", namespace))
    library = theirs.load(name, [path], is_python_module=False)
    assert library.startswith(str(own_store)) and os.path.isfile(library)
    x = torch.tensor([-1.0, 2.0])
    assert getattr(torch.ops, namespace).relu(x).tolist() == [0, 2]


def test_stable_ops_beside_an_empty_module_of_another_name_are_found_too(theirs, source):
    namespace = sample_ops.unique_name("relu")
    empty = MODULE.replace("INIT(TORCH_EXTENSION_NAME)", "PyInit__C").replace("VALUE", "1")
    name, path = source(empty + sample_ops.STABLE_SOURCE.replace("@NAME@", namespace))
    theirs.load(name, [path], is_python_module=False)
    assert getattr(torch.ops, namespace).relu(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]


def test_a_python_module_registers_the_stable_ops_that_it_holds(theirs, source):
    namespace = sample_ops.unique_name("relu")
    name, path = source(MODULE + sample_ops.STABLE_SOURCE.replace("@NAME@", namespace))
    assert theirs.load(name, [path], extra_cflags=["-DVALUE=7"]).value() == 7
    assert getattr(torch.ops, namespace).relu(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]


def test_ops_where_a_module_was_asked_for_are_an_import_error_as_they_are_torchs(theirs, source):
    name, path = source("int nothing = 1;\n")
    with pytest.raises(ImportError, match=r"it is no Python module\. Pass is_python_module=False"):
        theirs.load(name, [path])
    assert os.path.isfile(theirs.load(name, [path], is_python_module=False))


def test_load_inline_gives_the_module_too(theirs, own_store):
    name = sample_ops.unique_name("inline")
    module = theirs.load_inline(name, [MODULE], extra_cflags=["-DVALUE=3"], no_implicit_headers=True)
    assert module.value() == 3
    assert module.__file__.startswith(str(own_store))


def test_a_build_directory_is_the_ops_own_store(theirs, source, tmp_path):
    name, path = source()
    module = theirs.load(name, [path], extra_cflags=["-DVALUE=1"], build_directory=str(tmp_path / "mine"))
    assert module.__file__.startswith(str(tmp_path / "mine"))


def test_what_opforge_refuses_is_left_to_torch_with_the_reason(theirs, source, tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="opforge")
    name, path = source("int main() { return 3; }\n")
    built = theirs.load(
        name, [path], is_python_module=False, is_standalone=True, build_directory=str(tmp_path), verbose=False
    )
    assert subprocess.run([built], env={"LD_LIBRARY_PATH": theirs.library_paths()[0]}).returncode == 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{name} is left to torch.utils.cpp_extension.load: ")
    assert "is_standalone=True" in message


def test_a_compile_error_is_opforges_and_again_the_next_time(theirs, source):
    name, path = source("int wrong\n")
    for _ in range(2):
        with pytest.raises(errors.CompileError, match=rf"{name}: compile {name}.cpp failed: .*{name}.cpp:1:.*error"):
            theirs.load(name, [path])


def test_an_argument_that_torch_does_not_know_is_refused_as_torch_refuses_it(theirs):
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'abi'"):
        theirs.load("x", ["x.cpp"], abi="c")


def test_uninstall_gives_torchs_own_back():
    import torch.utils.cpp_extension as module

    names = ("load", "load_inline", "BuildExtension")
    before = [getattr(module, name) for name in names]
    cpp_extension.install()
    cpp_extension.install()
    during = [getattr(module, name) for name in names]
    cpp_extension.uninstall()
    assert [getattr(module, name) for name in names] == before
    assert not set(map(id, before)) & set(map(id, during))
    assert issubclass(during[2], before[2])
