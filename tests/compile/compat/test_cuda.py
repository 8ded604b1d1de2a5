"""CUDA sources through torch's interfaces: a CUDAExtension in a setup script, and `load`.

The installed torch may have no CUDA, and then its CUDA headers do not compile. The fixture `torch_with_cuda` fakes its
CUDA version and the names of its CUDA libraries; nvcc, the sources and the commands are real.
"""

from __future__ import annotations

import inspect
import logging
import os
import subprocess

import pytest
from support import child_processes, sample_ops, text_files

from opforge.builders import jit
from opforge.builders.declaration import abi
from opforge.builders.load_op import find
from opforge.builders.planner import make_plan
from opforge.builders.toolchains import find_toolchain, nvcc
from opforge.compat import cpp_extension
from opforge.compat.cpp_extension.extension_builder import builder_for
from opforge.errors import ToolchainNotFoundError

torch = pytest.importorskip("torch", reason="pip install torch")

MODULE = """\
#include <Python.h>
int launch(int* out);
static PyObject* value(PyObject*, PyObject*) {
  int out = 0;
  const int problem = launch(&out);
  return problem ? PyLong_FromLong(-problem) : PyLong_FromLong(out);
}
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "module", nullptr, -1, methods};
#define NAMED(name) PyInit_##name
#define INIT(name) NAMED(name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
"""
KERNEL = """\
#include <cuda_runtime.h>
#include "value.h"
#if !defined(FOR_NVCC) || !defined(__CUDA_NO_HALF_OPERATORS__) || !defined(FOR_BOTH)
#error "a flag is missing"
#endif
__global__ void kernel(int* out) { *out = VALUE; }
int launch(int* out) {
  int* there = nullptr;
  cudaError_t problem = cudaMalloc(&there, sizeof(int));
  if (problem != cudaSuccess) return problem;
  kernel<<<1, 1>>>(there);
  problem = cudaMemcpy(out, there, sizeof(int), cudaMemcpyDeviceToHost);
  cudaFree(there);
  return problem;
}
"""
CUDA_LIBRARIES = ("libc10_cuda.so", "libtorch_cuda.so")


@pytest.fixture
def toolkit(monkeypatch):
    """torch.utils.cpp_extension with nvcc's folder as CUDA_HOME, which a torch without CUDA does not search for."""
    import torch.utils.cpp_extension as torch_extension

    try:
        path = nvcc.find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    output = subprocess.run([path, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True).stderr
    home = next(line.partition("=")[2] for line in output.splitlines() if line.startswith("#$ TOP="))
    monkeypatch.setattr(torch_extension, "CUDA_HOME", os.path.realpath(home))
    return torch_extension


@pytest.fixture
def torch_with_cuda(tmp_path, monkeypatch):
    """A fake torch with nvcc's CUDA version and empty CUDA libraries beside the real ones, if torch has no CUDA."""
    if torch.version.cuda:
        return
    real, fake = os.path.dirname(torch.__file__), tmp_path / "torch"
    (fake / "lib").mkdir(parents=True)
    (fake / "include").symlink_to(os.path.join(real, "include"))
    for name in os.listdir(os.path.join(real, "lib")):
        (fake / "lib" / name).symlink_to(os.path.join(real, "lib", name))
    for name in CUDA_LIBRARIES:
        (fake / "lib" / name).touch()
    release = subprocess.run([nvcc.find(), "--version"], capture_output=True, text=True, check=True).stdout
    (fake / "version.py").write_text(f"cuda = '{release.partition('release ')[2].partition(',')[0]}'\n")
    monkeypatch.setattr(torch, "__file__", str(fake / "__init__.py"))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The function that creates the extension of a project in the working folder: a C++ module and a CUDA kernel."""
    folder = tmp_path / "project"
    (folder / "include").mkdir(parents=True)
    for name, text in {"module.cpp": MODULE, "kernel.cu": KERNEL, "include/value.h": "#define VALUE 42\n"}.items():
        text_files.write(folder, name, text)
    monkeypatch.chdir(folder)

    def extension(torch_extension, **options):
        flags = {"cxx": ["-DFOR_CXX"], "nvcc": ["-DFOR_NVCC", "--use_fast_math"]}
        return torch_extension.CUDAExtension(
            sample_ops.unique_name("ext"),
            ["module.cpp", "kernel.cu"],
            include_dirs=["include"],
            define_macros=[("FOR_BOTH", None)],
            **{"extra_compile_args": flags, **options},
        )

    return extension


def command_for(kind, ext):
    """Returns the `build_ext` command of a project that has only this extension."""
    from setuptools import Distribution

    command = kind(Distribution({"name": "project", "ext_modules": [ext]}))
    command.ensure_finalized()
    return command


def prepared(kind, ext):
    """Returns the command in the state in which it builds the extension: torch has added its flags and the compiler."""
    command = command_for(kind, ext)
    command.build_extension = lambda _: None
    command.run()
    return command


@pytest.fixture
def torch_extension(toolkit):
    """torch.utils.cpp_extension on opforge."""
    cpp_extension.install()
    yield toolkit
    cpp_extension.uninstall()


def test_the_command_builds_a_cuda_extension_whose_module_works(
    torch_extension, project, torch_with_cuda, own_store, monkeypatch
):
    from opforge.builders.inspection.elf import read_library

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    ext = project(torch_extension)
    command = command_for(torch_extension.BuildExtension, ext)
    command.run()
    path = os.path.abspath(command.get_ext_fullpath(ext.name))
    needs = read_library(path)["needs"]
    # The module calls nothing of torch's: it needs none of its libraries, and CUDA's runtime is a part of it.
    assert [name for name in needs if name.startswith(("libtorch", "libc10")) or "cudart" in name] == []
    code = f"""
import torch
import {ext.name}
print({ext.name}.value())
"""
    value = int(child_processes.run_with_torch(code, cwd=os.path.dirname(path)))
    assert value == 42 if torch.cuda.is_available() else value in (-35, -100), "no driver, or no device: an error"
    again = project(torch_extension)
    again.name = ext.name
    assert find(builder_for(again, prepared(torch_extension.BuildExtension, again)).spec()).entry is not None, (
        "the second time it is a hit"
    )


def test_the_plan_has_each_compilers_flags_and_the_architectures_of_torch_cuda_arch_list(
    toolkit, project, torch_with_cuda, own_store, monkeypatch
):
    from opforge.cache.current_store import current_store

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX")
    ext = project(toolkit)
    builder = builder_for(ext, prepared(toolkit.BuildExtension, ext))
    plan = make_plan(builder.spec(), find_toolchain(builder.spec(), current_store()))
    assert plan.target == "cuda:sm_80+sm_90+ptx"
    assert [source.path for source in plan.sources] == ["module.cpp", "kernel.cu"]
    name = f"-DTORCH_EXTENSION_NAME={ext.name}"
    assert {"-DFOR_CXX", "-DFOR_BOTH", name} <= set(plan.compile_flags)
    assert {"-DFOR_NVCC", "-DFOR_BOTH", name, "--use_fast_math", *toolkit.COMMON_NVCC_FLAGS} <= set(plan.device_flags)
    assert "-DFOR_NVCC" not in plan.compile_flags and "-DFOR_CXX" not in plan.device_flags
    assert "arch=compute_90,code=compute_90" in plan.device_flags
    assert set(CUDA_LIBRARIES) <= set(plan.stubs) and plan.libraries == ()
    assert not {*abi.LOADS} & {*plan.defines}, "a shipped library registers its ops when any program opens it"
    own, *others = builder.include_dirs
    assert own == os.path.realpath("include")
    assert not [folder for folder in others if folder.startswith(toolkit.CUDA_HOME)], (
        "nvcc adds the toolkit's headers itself"
    )


def test_flags_in_one_list_are_for_both_compilers_and_choose_the_architectures(
    toolkit, project, own_store, monkeypatch
):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    ext = project(toolkit, extra_compile_args=["-DALL", "-gencode=arch=compute_90a,code=sm_90a"])
    builder = builder_for(ext, prepared(toolkit.BuildExtension, ext))
    assert str(builder.target) == "cuda:sm_90a"
    spec = builder.spec()
    assert "-DALL" in spec.cxx_flags and "-DALL" in spec.device_flags
    assert not [flag for flag in spec.device_flags if "gencode" in flag]
    assert builder.debug is False


@pytest.mark.skipif(bool(torch.version.cuda), reason="this torch has CUDA")
def test_a_cuda_extension_is_left_to_a_torch_without_cuda_with_the_reason(toolkit, project, own_store, caplog):
    from opforge.compat.cpp_extension.setup_command import command_on_opforge

    built_by_torch = []

    class TorchCommand(toolkit.BuildExtension):
        def build_extension(self, ext):
            built_by_torch.append(ext.name)

    ext = project(toolkit)
    command_for(command_on_opforge(TorchCommand, TorchCommand), ext).run()
    assert built_by_torch == [ext.name]
    (message,) = [record.getMessage() for record in caplog.records if record.name == "opforge"]
    assert message.startswith(f"{ext.name} is left to torch's BuildExtension: The compiler ")
    assert "the `torch` ABI needs a torch that is built with CUDA" in message


@pytest.mark.skipif(bool(torch.version.cuda), reason="this torch has CUDA")
def test_load_of_cuda_sources_is_left_to_a_torch_without_cuda_with_the_reason(torch_extension, project, caplog):
    caplog.set_level(logging.WARNING, logger="opforge")
    torch_extension.CUDA_HOME = None  # as in a torch without CUDA; the fixture restores it
    name = sample_ops.unique_name("ext")
    with pytest.raises(OSError, match="CUDA_HOME environment variable is not set"):
        torch_extension.load(name, ["module.cpp", "kernel.cu"])
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{name} is left to torch.utils.cpp_extension.load: The op ")
    assert "it needs torch's libtorch_cuda.so" in message


def test_load_passes_the_compilers_of_devices_torchs_flags_as_words(monkeypatch, tmp_path):
    import torch.utils.cpp_extension as module

    from opforge.compat.cpp_extension.jit import load_on_opforge

    calls, signature = [], inspect.signature(jit.load)

    def record(**options):
        calls.append(options)

    record.__signature__ = signature
    monkeypatch.setattr(jit, "load", record)
    load = load_on_opforge("load", module)
    load("a", ["a.cu"], extra_cuda_cflags=["-O1 -lineinfo"], extra_sycl_cflags=["-O2"])
    common = [] if module.IS_HIP_EXTENSION else module.COMMON_NVCC_FLAGS
    ((cuda, sycl),) = [(call["extra_cuda_cflags"], call["extra_sycl_cflags"]) for call in calls]
    assert cuda == [*common, "-O1", "-lineinfo"] and sycl == ["-O2"]
