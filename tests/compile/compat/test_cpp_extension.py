"""Unmodified callers of torch.utils.cpp_extension on opforge: modules, ops, fallbacks to torch, errors."""

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
"""A Python module in plain C++: it compiles in a second, and pybind's headers in fifteen."""


@pytest.fixture
def torch_extension():
    """torch.utils.cpp_extension on opforge, for one test."""
    import torch.utils.cpp_extension as module

    cpp_extension.install()
    yield module
    cpp_extension.uninstall()


@pytest.fixture
def source(tmp_path):
    """A function that writes a source and returns an unused name and the path."""

    def write(text=MODULE):
        name = sample_ops.unique_name("ext")
        return name, text_files.write(tmp_path, f"{name}.cpp", text)

    return write


def test_load_returns_the_module_from_the_store_and_the_same_one_again(torch_extension, source, own_store):
    name, path = source()
    module = torch_extension.load(name=name, sources=[path], extra_cflags=["-DVALUE=41"])
    assert module.value() == 41
    assert module.__file__.startswith(str(own_store))
    assert torch_extension.load(name, path, ["-DVALUE=41"]) is module


def test_what_projects_call_below_load_is_the_store_too(torch_extension, source, own_store, tmp_path):
    """torch's own `load` is this function with a folder."""
    name, path = source()
    arguments = [name, [path], ["-DVALUE=6"], None, None, None, None, str(tmp_path), False, None, None, True, False]
    module = torch_extension._jit_compile(*arguments)
    assert module.value() == 6 and module.__file__.startswith(str(tmp_path / "opforge"))


def test_an_error_of_load_ends_at_the_callers_line(torch_extension, source):
    name, path = source("int wrong\n")
    with pytest.raises(errors.CompileError) as caught:
        torch_extension.load(name, [path])
    assert [os.path.basename(str(entry.path)) for entry in caught.traceback] == ["test_cpp_extension.py"]


def test_load_is_a_hit_in_another_process_that_imported_it_before_install(torch_extension, source, own_store, tmp_path):
    name, path = source()
    torch_extension.load(name, [path], extra_cflags=["-DVALUE=5"])
    code = """
import os
from torch.utils.cpp_extension import load as jit
import opforge.compat.cpp_extension
opforge.compat.cpp_extension.install()
print(jit(os.environ["NAME"], [os.environ["SOURCE"]], extra_cflags=["-DVALUE=5"]).value())
"""
    events = tmp_path / "events"
    env = {"NAME": name, "SOURCE": path, "OPFORGE_CACHE_DIR": str(own_store), "OPFORGE_LOG": str(events)}
    assert child_processes.run_with_torch(code, env=env) == "5\n"
    assert [json.loads(line)["event"] for line in events.read_text().splitlines()] == ["hit", "load"]


def test_flags_are_split_as_in_a_shell_and_flags_for_device_code_are_left_out(torch_extension, source):
    name, path = source(MODULE.replace("VALUE", "VALUE + sizeof(TEXT)"))
    flags = ["-O1 -DVALUE=1", r"-DTEXT=\"ab\""]
    module = torch_extension.load(name, [path], extra_cflags=flags, extra_cuda_cflags=["--use_fast_math"])
    assert module.value() == 4


def test_an_include_folder_that_does_not_exist_is_ignored(torch_extension, source, tmp_path):
    name, path = source()
    folders = [str(tmp_path), str(tmp_path / "missing")]
    assert torch_extension.load(name, [path], extra_cflags=["-DVALUE=2"], extra_include_paths=folders).value() == 2


def test_stable_ops_beside_a_module_of_another_name_are_registered_and_load_returns_the_librarys_path(
    torch_extension, source, own_store
):
    namespace = sample_ops.unique_name("relu")
    empty = MODULE.replace("INIT(TORCH_EXTENSION_NAME)", "PyInit__C").replace("VALUE", "1")
    name, path = source(empty + sample_ops.STABLE_SOURCE.replace("@NAME@", namespace))
    library = torch_extension.load(name, [path], is_python_module=False)
    assert library.startswith(str(own_store)) and os.path.isfile(library)
    assert getattr(torch.ops, namespace).relu(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]


def test_a_python_module_registers_the_stable_ops_that_it_holds(torch_extension, source):
    namespace = sample_ops.unique_name("relu")
    name, path = source(MODULE + sample_ops.STABLE_SOURCE.replace("@NAME@", namespace))
    assert torch_extension.load(name, [path], extra_cflags=["-DVALUE=7"]).value() == 7
    assert getattr(torch.ops, namespace).relu(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]


def test_a_library_that_is_not_a_module_is_an_import_error_as_with_torch(torch_extension, source):
    name, path = source("int nothing = 1;\n")
    with pytest.raises(ImportError, match=r"it is not a Python module\. Pass is_python_module=False"):
        torch_extension.load(name, [path])
    assert os.path.isfile(torch_extension.load(name, [path], is_python_module=False))


def test_load_inline_returns_the_module(torch_extension, own_store):
    name = sample_ops.unique_name("inline")
    module = torch_extension.load_inline(name, [MODULE], extra_cflags=["-DVALUE=3"], no_implicit_headers=True)
    assert module.value() == 3
    assert module.__file__.startswith(str(own_store))


def test_a_build_directory_is_used_as_the_store(torch_extension, source, tmp_path):
    name, path = source()
    module = torch_extension.load(name, [path], extra_cflags=["-DVALUE=1"], build_directory=str(tmp_path / "mine"))
    assert module.__file__.startswith(str(tmp_path / "mine"))


def test_what_opforge_cannot_build_is_left_to_torch_with_the_reason(torch_extension, source, tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="opforge")
    name, path = source("int main() { return 3; }\n")
    built = torch_extension.load(
        name, [path], is_python_module=False, is_standalone=True, build_directory=str(tmp_path), verbose=False
    )
    assert subprocess.run([built], env={"LD_LIBRARY_PATH": torch_extension.library_paths()[0]}).returncode == 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{name} is left to torch.utils.cpp_extension.load: ")
    assert "is_standalone=True" in message


def test_a_compile_error_is_opforges_each_time(torch_extension, source):
    name, path = source("int wrong\n")
    for _ in range(2):
        with pytest.raises(errors.CompileError, match=rf"{name}: compile {name}.cpp failed: .*{name}.cpp:1:.*error"):
            torch_extension.load(name, [path])


def test_an_argument_that_torch_lacks_is_a_type_error_as_with_torch(torch_extension):
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'abi'"):
        torch_extension.load("x", ["x.cpp"], abi="c")


def test_uninstall_restores_torchs_functions_and_command():
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


@pytest.fixture
def refused_default(tmp_path, monkeypatch):
    """A default cache folder that everybody may write, and nothing that this process has found out of it."""
    from opforge.cache import current_store
    from opforge.compat.cpp_extension import jit

    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torchs"))
    (tmp_path / "opforge").mkdir()
    (tmp_path / "opforge").chmod(0o777)
    monkeypatch.setattr(jit, "_not_kept", [])
    current_store.reset()
    return tmp_path / "opforge"


@pytest.fixture
def torchs(monkeypatch, torch_extension):
    """The names that are left to torch's own functions, which build nothing here."""
    import torch.utils.cpp_extension as module

    names = []
    cpp_extension.uninstall()
    for function in ("load", "load_inline"):
        monkeypatch.setattr(module, function, _recording(getattr(module, function), names))
    cpp_extension.install()
    return names


def _recording(function, names):
    import functools

    @functools.wraps(function)
    def call(name, *_args, **_kwargs):
        names.append(name)

    return call


def test_a_default_cache_that_cannot_be_used_leaves_extensions_to_torch_with_one_warning(
    torch_extension, torchs, source, refused_default, caplog
):
    (first, path), (second, other) = source(), source()
    torch_extension.load(name=first, sources=[path], extra_cflags=["-DVALUE=1"])
    torch_extension.load(name=second, sources=[other], extra_cflags=["-DVALUE=1"])
    torch_extension.load_inline(name="text", cpp_sources=MODULE, extra_cflags=["-DVALUE=2"])
    assert torchs == [first, second, "text"]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.startswith(
        f"{first}, as all that is not built yet, is left to torch.utils.cpp_extension.load: The cache"
    )
    assert (
        f"{refused_default} can be written by everybody. Run: chmod go-w {refused_default}; or set OPFORGE_" in warning
    )


def test_what_is_named_or_required_is_not_left_to_torch(
    torch_extension, torchs, source, refused_default, monkeypatch, tmp_path
):
    name, path = source()
    with monkeypatch.context() as patch, pytest.raises(errors.PrebuiltRequiredError):
        patch.setenv("OPFORGE_PREBUILT", "require")
        torch_extension.load(name=name, sources=[path], extra_cflags=["-DVALUE=1"])
    with monkeypatch.context() as patch, pytest.raises(errors.LayerError):
        patch.setenv("OPFORGE_CACHE_LAYERS", str(refused_default))
        torch_extension.load(name=name, sources=[path], extra_cflags=["-DVALUE=1"])
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(refused_default))
    with pytest.raises(errors.CacheDirError, match="can be written by everybody"):
        torch_extension.load(name=name, sources=[path], extra_cflags=["-DVALUE=1"])
    assert not torchs


def test_what_a_layer_has_is_loaded_although_nothing_can_be_kept(
    torch_extension, torchs, source, own_store, refused_default, monkeypatch, tmp_path
):
    from opforge.cache import layer
    from opforge.cache.current_store import open_store

    name, path = source()
    with monkeypatch.context() as patch:
        patch.setenv("OPFORGE_CACHE_DIR", str(own_store))
        assert torch_extension.load(name=name, sources=[path], extra_cflags=["-DVALUE=7"]).value() == 7
        store = open_store(str(own_store))
        (key,) = os.listdir(store.layout.path("entries"))
        entry = store.own.read(key)
        layer.add(str(tmp_path / "layer"), entry, entry.record["description"], store.owners)
    monkeypatch.setenv("OPFORGE_CACHE_LAYERS", str(tmp_path / "layer"))
    assert torch_extension.load(name=name, sources=[path], extra_cflags=["-DVALUE=7"]).value() == 7
    assert not torchs


def test_load_of_a_project_that_compiles_on_import_is_on_the_facade_if_install_is_asked_for_it(source, own_store):
    import torch.utils.cpp_extension as module

    name, path = source(sample_ops.FACADE_SOURCE)
    cpp_extension.install(abi="torch-facade")
    try:
        loaded = module.load(name, [path], extra_cflags=["-O0"])
        assert loaded.twice(torch.tensor([1.5])).item() == 3 and loaded.__file__.startswith(str(own_store))
        records = [json.loads(found.read_text()) for found in own_store.glob("v2/entries/*/record.json")]
        assert [record["abi"] for record in records] == ["torch-facade"]
        kernel = text_files.write(own_store.parent, f"{name}.sycl", "")
        with pytest.raises(errors.BuilderError, match=r"abi='torch-facade' for xpu\. It has headers for the CPU and"):
            module.load(f"{name}_of_xpu", [path, kernel])  # and not left to torch
    finally:
        cpp_extension.uninstall()


def test_an_abi_that_install_does_not_know_is_an_error():
    with pytest.raises(ValueError, match="abi is 'facade', expected 'torch' or 'torch-facade'"):
        cpp_extension.install(abi="facade")
