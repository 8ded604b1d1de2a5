"""The adapters of JITs that are installed here keep the contract of adapters."""

from __future__ import annotations

import importlib.util
import os

import pytest
from support.gpu import triton_parts

from opforge.testing import JitContract
from opforge.testing.jits import Edit

pytestmark = [pytest.mark.compile, pytest.mark.timeout(1200)]
long = pytest.mark.long("eight processes, with compilers")

FFI_MAIN = """\
import os
import tvm_ffi.cpp

HERE = os.path.dirname(os.path.abspath(__file__))
CONSTANT = 3


def result():
    include, flags = os.path.join(HERE, "include"), [f"-DCONSTANT={CONSTANT}"]
    source = os.path.join(HERE, "outer.cc")
    loaded = tvm_ffi.cpp.load(name="outer", cpp_files=[source], extra_include_paths=[include], extra_cflags=flags)
    return loaded.outer(1)
"""
FFI_OUTER = """\
#include <tvm/ffi/function.h>
#include "inner.h"
#include <scale.h>

int outer(int x) { return inner(x) * SCALE + CONSTANT; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(outer, outer);
"""


@long
@pytest.mark.skipif(importlib.util.find_spec("tvm_ffi") is None, reason="pip install apache-tvm-ffi")
class TestTvmFfi(JitContract):
    jit = "tvm-ffi"
    files = {
        "main.py": FFI_MAIN,
        "outer.cc": FFI_OUTER,
        "inner.h": "inline int inner(int x) { return x + 10; }\n",
        "include/scale.h": "#define SCALE 2\n",
    }
    edits = {
        "function": Edit("outer.cc", "inner(x) * SCALE", "inner(x) * SCALE + 1"),
        "callee": Edit("inner.h", "x + 10", "x + 20"),
        "header": Edit("include/scale.h", "SCALE 2", "SCALE 3"),
        "closure": Edit("main.py", "CONSTANT = 3", "CONSTANT = 4"),
    }


FLASHINFER_MAIN = """\
import os
from pathlib import Path

from flashinfer.jit.core import gen_jit_spec

HERE = Path(os.path.dirname(os.path.abspath(__file__)))


def result():
    include = [HERE / "include"]
    return gen_jit_spec("outer", [HERE / "outer.cu"], extra_include_paths=include).build_and_load().outer(1)
"""


@long
@pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None,
    reason="no extra has FlashInfer, which needs 900 MB and nvcc: pip install flashinfer-python",
)
class TestFlashInfer(JitContract):
    """CUDA_HOME names a toolkit. Modules are linked with the driver: CUDA_LIBRARIES, folders with a stub and cudart."""

    jit = "flashinfer"
    files = {
        "main.py": FLASHINFER_MAIN,
        "outer.cu": FFI_OUTER.replace(" + CONSTANT", ""),
        "inner.h": "inline int inner(int x) { return x + 10; }\n",
        "include/scale.h": "#define SCALE 2\n",
    }
    edits = {
        "function": Edit("outer.cu", "inner(x) * SCALE", "inner(x) * SCALE + 1"),
        "callee": Edit("inner.h", "x + 10", "x + 20"),
        "header": Edit("include/scale.h", "SCALE 2", "SCALE 3"),
    }
    environment = {
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        **{name: os.environ.get("CUDA_LIBRARIES", "") for name in ("LIBRARY_PATH", "LD_LIBRARY_PATH")},
    }


TRITON_MAIN = """\
import sys, os
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from other import inner

FACTOR = tl.constexpr(2)


@triton.jit
def outer(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, inner(tl.load(x + at)) * FACTOR)


def result():
    source = ASTSource(outer, {"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}, constexprs={"BLOCK": 128})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
"""
TRITON_OTHER = """\
import triton


@triton.jit
def inner(x):
    return x + 10
"""


@long
@triton_parts.needs_triton
class TestTriton(JitContract):
    jit = "triton"
    files = {"main.py": TRITON_MAIN, "other.py": TRITON_OTHER}
    edits = {
        "function": Edit("main.py", ") * FACTOR", ") * FACTOR + 1"),
        "callee": Edit("other.py", "x + 10", "x + 20"),
        "closure": Edit("main.py", "constexpr(2)", "constexpr(3)"),
    }


HOST_MAIN = """\
import os
from triton.runtime.build import compile_module_from_src

HERE = os.path.dirname(os.path.abspath(__file__))


def result():
    with open(os.path.join(HERE, "answer.c")) as file:
        return compile_module_from_src(file.read(), "answer").answer
"""
HOST_SOURCE = """\
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "answer", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_answer(void) {
  PyObject *module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "answer", 42);
  return module;
}
"""


@long
@triton_parts.needs_triton
class TestTritonsHostLibrary(JitContract):
    jit = "triton-host"
    files = {"main.py": HOST_MAIN, "answer.c": HOST_SOURCE}
    edits = {"function": Edit("answer.c", "42", "43")}


INDUCTOR_MAIN = """\
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch
from other import inner


def scaled(factor):
    def outer(x):
        return inner(x).sin() * factor

    return outer


def result():
    return torch.compile(scaled(2.0))(torch.ones(4)).tolist()
"""
INDUCTOR_OTHER = """\
def inner(x):
    return x + 10.0
"""


@long
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="pip install torch")
class TestInductor(JitContract):
    jit = "inductor"
    files = {"main.py": INDUCTOR_MAIN, "other.py": INDUCTOR_OTHER}
    edits = {
        "function": Edit("main.py", ".sin() *", ".cos() *"),
        "callee": Edit("other.py", "x + 10.0", "x + 20.0"),
        "closure": Edit("main.py", "scaled(2.0)", "scaled(3.0)"),
    }
    environment = {"OPFORGE_COMPILED_WAIT": "600"}  # eight compilers at once take longer than one


HAS_CUDA_CORE = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.core")
CUDA_MAIN = """\
from cuda.core import Program, ProgramOptions
from opforge.jits.cuda_core import program_cache

FACTOR = 2
SOURCE = 'extern "C" __global__ void scale(float* x) { x[0] *= %d; }'


def result():
    program = Program(SOURCE % FACTOR, "c++", ProgramOptions(arch="sm_90"))
    return bytes(program.compile("cubin", cache=program_cache()).code).hex()
"""


@pytest.mark.skipif(not HAS_CUDA_CORE, reason="pip install cuda-core cuda-bindings nvidia-cuda-nvrtc")
class TestCudaCore(JitContract):
    jit = "cuda-core"
    files = {"main.py": CUDA_MAIN}
    edits = {
        "function": Edit("main.py", "x[0] *=", "x[0] +="),
        "closure": Edit("main.py", "FACTOR = 2", "FACTOR = 3"),
    }


@long
def test_a_library_of_a_folder_of_the_users_is_built_and_not_kept(tmp_path, own_store, caplog):
    """Its content is not known, and may be another one on another machine."""
    extension = pytest.importorskip("tvm_ffi.cpp.extension")
    import opforge

    (tmp_path / "one.cc").write_text("#include <tvm/ffi/function.h>\n")
    os.makedirs(tmp_path / "libraries")
    with opforge.warm("label", jits=["tvm-ffi"]) as scope:
        extension.build(name="one", cpp_files=[str(tmp_path / "one.cc")], extra_ldflags=[f"-L{tmp_path}/libraries"])
    assert not scope.compiled["tvm-ffi"]
    assert f"{tmp_path}/libraries may change, and its content is not known" in caplog.text
