"""CUDA sources under torch's names: a CUDAExtension in a setup script, and `load`.

The torch here may be one without CUDA, and then its headers for CUDA do not compile. What it says of itself, and the
names of its libraries, are made up where a test says so; nvcc, the sources and the commands are real.
"""

from __future__ import annotations

import inspect
import logging
import os
import subprocess

import pytest
from support import child_processes, sample_ops, text_files

from opforge.builders import jit
from opforge.builders.lookup.finder import find
from opforge.builders.planner import make_plan
from opforge.builders.spec import abi
from opforge.builders.toolchains import find_toolchain, nvcc
from opforge.compat import cpp_extension
from opforge.compat.cpp_extension import nvcc_flags
from opforge.compat.cpp_extension.extension_builder import builder_of, refusal
from opforge.errors import BuilderError, ToolchainNotFoundError

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
    """nvcc's own folder as torch's CUDA_HOME, which a torch without CUDA does not look for."""
    import torch.utils.cpp_extension as theirs

    try:
        path = nvcc.find()
    except ToolchainNotFoundError as error:
        pytest.skip(str(error))
    told = subprocess.run([path, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True).stderr
    home = next(line.partition("=")[2] for line in told.splitlines() if line.startswith("#$ TOP="))
    monkeypatch.setattr(theirs, "CUDA_HOME", os.path.realpath(home))
    return theirs


@pytest.fixture
def torch_with_cuda(tmp_path, monkeypatch):
    """A torch that states the CUDA of nvcc here, and has the names of CUDA's libraries beside its own."""
    if torch.version.cuda:
        return
    real, made = os.path.dirname(torch.__file__), tmp_path / "torch"
    (made / "lib").mkdir(parents=True)
    (made / "include").symlink_to(os.path.join(real, "include"))
    for name in os.listdir(os.path.join(real, "lib")):
        (made / "lib" / name).symlink_to(os.path.join(real, "lib", name))
    for name in CUDA_LIBRARIES:
        (made / "lib" / name).touch()
    release = subprocess.run([nvcc.find(), "--version"], capture_output=True, text=True, check=True).stdout
    (made / "version.py").write_text(f"cuda = '{release.partition('release ')[2].partition(',')[0]}'\n")
    monkeypatch.setattr(torch, "__file__", str(made / "__init__.py"))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a module in C++ and a kernel in CUDA, as the current folder; gives what makes its extension."""
    folder = tmp_path / "project"
    (folder / "include").mkdir(parents=True)
    for name, text in {"module.cpp": MODULE, "kernel.cu": KERNEL, "include/value.h": "#define VALUE 42\n"}.items():
        text_files.write(folder, name, text)
    monkeypatch.chdir(folder)

    def extension(theirs, **options):
        flags = {"cxx": ["-DFOR_CXX"], "nvcc": ["-DFOR_NVCC", "--use_fast_math"]}
        return theirs.CUDAExtension(
            sample_ops.unique_name("ext"),
            ["module.cpp", "kernel.cu"],
            include_dirs=["include"],
            define_macros=[("FOR_BOTH", None)],
            **{"extra_compile_args": flags, **options},
        )

    return extension


def command_for(kind, ext):
    """The `build_ext` command of a project with this one extension."""
    from setuptools import Distribution

    command = kind(Distribution({"name": "project", "ext_modules": [ext]}))
    command.ensure_finalized()
    return command


def prepared(kind, ext):
    """The command as it stands when it builds the extension: torch adds its flags and names the compiler first."""
    command = command_for(kind, ext)
    command.build_extension = lambda _: None
    command.run()
    return command


@pytest.fixture
def theirs(toolkit):
    """torch.utils.cpp_extension with opforge beneath it."""
    cpp_extension.install()
    yield toolkit
    cpp_extension.uninstall()


def test_a_cuda_extension_is_built_by_the_command_and_its_module_works(
    theirs, project, torch_with_cuda, own_store, tmp_path, monkeypatch
):
    from opforge.builders.inspection.elf import read_library

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    ext = project(theirs)
    command = command_for(theirs.BuildExtension, ext)
    command.run()
    path = os.path.abspath(command.get_ext_fullpath(ext.name))
    needs = read_library(path)["needs"]
    assert set(CUDA_LIBRARIES) <= set(needs) and not [one for one in needs if "cudart" in one]
    stands_in = []
    for name in CUDA_LIBRARIES if not torch.version.cuda else ():
        # The module calls nothing in torch's libraries for CUDA: empty ones of their names will do to load it.
        stands_in.append(str(tmp_path / name))
        empty = ["-shared", "-x", "c", os.devnull, f"-Wl,-soname,{name}", "-o", stands_in[-1]]
        subprocess.run(["cc", *empty], check=True)
    code = f"""
import ctypes, torch
for path in {stands_in}:
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
import {ext.name}
print({ext.name}.value())
"""
    value = int(child_processes.run_python(code, cwd=os.path.dirname(path)))
    assert value == 42 if torch.cuda.is_available() else value in (-35, -100), "no driver, or no device: an error"
    again = project(theirs)
    again.name = ext.name
    assert find(builder_of(again, prepared(theirs.BuildExtension, again)).spec()).entry is not None, (
        "the second time it is a hit"
    )


def test_its_plan_has_each_compilers_flags_and_the_architectures_of_torchs_variable(
    toolkit, project, torch_with_cuda, own_store, monkeypatch
):
    from opforge.cache.current import current_store

    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX")
    ext = project(toolkit)
    builder = builder_of(ext, prepared(toolkit.BuildExtension, ext))
    plan = make_plan(builder.spec(), find_toolchain(builder.spec(), current_store()))
    assert plan.target == "cuda:sm_80+sm_90+ptx"
    assert [source.path for source in plan.sources] == ["module.cpp", "kernel.cu"]
    name = f"-DTORCH_EXTENSION_NAME={ext.name}"
    assert {"-DFOR_CXX", "-DFOR_BOTH", name} <= set(plan.compile_flags)
    assert {"-DFOR_NVCC", "-DFOR_BOTH", name, "--use_fast_math", *toolkit.COMMON_NVCC_FLAGS} <= set(plan.device_flags)
    assert "-DFOR_NVCC" not in plan.compile_flags and "-DFOR_CXX" not in plan.device_flags
    assert "arch=compute_90,code=compute_90" in plan.device_flags
    assert set(CUDA_LIBRARIES) <= set(plan.stubs) and plan.libraries == ()
    assert abi.LOADS not in plan.defines, "what is shipped registers its ops whoever opens it"
    own, *others = builder.include_dirs
    assert own == os.path.realpath("include")
    assert not [one for one in others if one.startswith(toolkit.CUDA_HOME)], "nvcc brings the toolkit's headers itself"


def test_flags_in_one_list_are_for_both_compilers_and_theirs_choose_the_architectures(
    toolkit, project, own_store, monkeypatch
):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    ext = project(toolkit, extra_compile_args=["-DALL", "-gencode=arch=compute_90a,code=sm_90a"])
    builder = builder_of(ext, prepared(toolkit.BuildExtension, ext))
    assert str(builder.target) == "cuda:sm_90a"
    spec = builder.spec()
    assert "-DALL" in spec.cxx_flags and "-DALL" in spec.device_flags
    assert not [flag for flag in spec.device_flags if "gencode" in flag]
    assert builder.debug is False


@pytest.mark.skipif(bool(torch.version.cuda), reason="this torch has CUDA")
def test_with_a_torch_without_cuda_it_is_left_to_torch_with_the_reason(toolkit, project, own_store, caplog):
    from opforge.compat.cpp_extension.setup_command import command_on_opforge

    left = []

    class Theirs(toolkit.BuildExtension):
        def build_extension(self, ext):
            left.append(ext.name)

    ext = project(toolkit)
    command_for(command_on_opforge(Theirs), ext).run()
    assert left == [ext.name]
    (message,) = [record.getMessage() for record in caplog.records if record.name == "opforge"]
    assert message.startswith(f"{ext.name} is left to torch's BuildExtension: The compiler ")
    assert "the `torch` ABI needs a torch with CUDA, and this one has none" in message


@pytest.mark.skipif(bool(torch.version.cuda), reason="this torch has CUDA")
def test_load_of_cuda_sources_is_left_to_a_torch_without_cuda_which_says_what_it_lacks(theirs, project, caplog):
    caplog.set_level(logging.WARNING, logger="opforge")
    theirs.CUDA_HOME = None  # as it is in a torch without CUDA; the fixture gives it back
    name = sample_ops.unique_name("ext")
    with pytest.raises(OSError, match="CUDA_HOME environment variable is not set"):
        theirs.load(name, ["module.cpp", "kernel.cu"])
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{name} is left to torch.utils.cpp_extension.load: The op ")
    assert "it needs torch's libtorch_cuda.so" in message


def test_load_gives_nvcc_what_torch_gives_it_and_only_where_there_is_cuda_code(monkeypatch, tmp_path):
    import torch.utils.cpp_extension as module

    from opforge.compat.cpp_extension.jit import load_on_opforge

    calls, signature = [], inspect.signature(jit.load)

    def recorded(**options):
        calls.append(options)

    recorded.__signature__ = signature
    monkeypatch.setattr(jit, "load", recorded)
    load = load_on_opforge("load", module)
    for source in ("a.cu", "a.sycl", "a.cpp"):
        load("a", [source], extra_cuda_cflags=["-O1 -lineinfo"], extra_sycl_cflags=["-O2"])
    names = ("extra_cuda_cflags", "extra_sycl_cflags")
    common = [] if module.IS_HIP_EXTENSION else module.COMMON_NVCC_FLAGS
    assert [{name: call[name] for name in names if name in call} for call in calls] == [
        {"extra_cuda_cflags": [*common, "-O1", "-lineinfo"]},
        {"extra_sycl_cflags": ["-O2"]},
        {},
    ]


@pytest.mark.parametrize(
    ("flags", "kept", "codes"),
    [
        (["-O3", "-Xcompiler", "-Wall"], ("-O3", "-Xcompiler", "-Wall"), ()),
        (["-gencode", "arch=compute_80,code=sm_80", "-O3"], ("-O3",), ("sm_80",)),
        (["-gencode=arch=compute_90,code=[sm_90,compute_90]"], (), ("sm_90", "ptx")),
        (["--generate-code=arch=compute_90a,code=sm_90a", "--generate-code", "arch=compute_80,code=compute_80"], (),
         ("sm_90a", "compute_80")),
    ],
)  # fmt: skip
def test_architectures_among_the_flags_become_the_target(flags, kept, codes):
    assert nvcc_flags.without_architectures("a", flags) == (kept, codes)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["-arch=native"], "-arch=native"),
        (["-gencode", "arch=compute_80,code=sm_86"], "-gencode arch=compute_80,code=sm_86"),
        (["-gencode"], "-gencode"),
    ],
)
def test_architectures_that_no_target_can_say_are_refused(flags, named):
    with pytest.raises(BuilderError) as refused:
        nvcc_flags.without_architectures("a._C", flags)
    assert str(refused.value) == (
        f"a._C: nvcc is given {named!r}. Write -gencode=arch=compute_90,code=sm_90, or set TORCH_CUDA_ARCH_LIST"
    )


def test_device_code_that_is_linked_by_itself_is_not_opforges_to_build():
    from setuptools import Extension

    ext = Extension("a._C", ["a.cpp", "a.cu"], libraries=["torch"])
    assert refusal(ext) == ""
    ext.extra_compile_args = {"cxx": [], "nvcc": [], "nvcc_dlink": ["-dlink"]}
    assert refusal(ext) == "its device code is linked by itself (dlink)"
