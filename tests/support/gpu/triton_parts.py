"""A small Triton op for tests, the fake GPU driver, and code that runs without Triton or a compiler."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
from support import sample_ops, text_files

# Not importorskip, which would import Triton: triton_interpreter.py must be the first to do so.
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="pip install triton")

KERNELS = """\
import triton
import triton.language as tl

from .factor import times


@triton.jit
def scale(x, y, count, by, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    tl.store(y + at, times(tl.load(x + at, mask=here), by), mask=here)
"""
FACTOR = """\
import triton


@triton.jit
def times(value, by):
    return value * by
"""
ARGUMENTS = {"x": "*fp32:16", "y": "*fp32:16", "count": "i64", "by": "fp32"}
BUILDER = """\
from opforge.builders.triton import Kernel, TritonOpBuilder


class ScaleBuilder(TritonOpBuilder):
    name = "scale"
    python_functions = "scale_functions:bind"
    kernels = [Kernel(f"scale_{block}", "kernels.py", "scale", ARGUMENTS, {"BLOCK": block}) for block in (512, 1024)]
"""
FUNCTIONS = """\
def bind(kernels):
    def scale(x, y, by):
        kernels.launch("scale_1024", (-(-x.numel() // 1024), 1, 1), x, y, x.numel(), by)

    return {"scale": scale}
"""
WITHOUT_TRITON = """\
import sys


class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError("No module named 'triton'", name=name)


sys.meta_path.insert(0, NoTriton())
"""
TENSOR = """\
class Tensor:
    "Has the attributes of a tensor on a GPU that a launch reads."

    def __init__(self, address, count=2048, device=0):
        self.address, self.count, self.index = address, count, device
        self.device = f"cuda:{device}" if device >= 0 else "cpu"

    def get_device(self): return self.index
    def is_pinned(self): return self.index == -2
    def data_ptr(self): return self.address
    def numel(self): return self.count
"""


def scale_op(folder: Any, name: str = "") -> Any:
    """Writes the op `scale` to a folder, as a module with a new name, and returns its builder class."""
    name = name or sample_ops.unique_name("scale_builder")
    os.makedirs(folder, exist_ok=True)
    text_files.write(folder, "kernels.py", KERNELS)
    text_files.write(folder, "factor.py", FACTOR)
    text_files.write(folder, f"{name}_functions.py", FUNCTIONS)
    builder = BUILDER.replace("ARGUMENTS", repr(ARGUMENTS)).replace("scale_functions", f"{name}_functions")
    text_files.write(folder, f"{name}.py", builder)
    sys.path.insert(0, str(folder))
    try:
        importlib.import_module(f"{name}_functions")
        return importlib.import_module(name).ScaleBuilder
    finally:
        sys.path.remove(str(folder))


def fake_driver(folder: Any, device: str = "cuda", *options: str) -> str:
    """Compiles the fake driver, and returns its folder, for LD_LIBRARY_PATH."""
    output = os.path.join(str(folder), f"driver_{device}")
    os.makedirs(output, exist_ok=True)
    include = [f"-I{path}" for path in sorted(glob.glob("/usr/local/cuda*/include"))[-1:]]
    name, own = ("libcuda.so.1", include) if device == "cuda" else ("libamdhip64.so", ["-DHIP"])
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_driver.c")
    library = os.path.join(output, name)
    subprocess.run(["gcc", "-shared", "-fPIC", *own, *options, source, "-o", library], check=True, timeout=60)
    return output


def forbidden_compilers(folder: Any) -> tuple[str, str]:
    """Returns a folder for PATH whose compilers fail and create a file, and the path of that file."""
    output, mark = os.path.join(str(folder), "no_compilers"), os.path.join(str(folder), "a_compiler_was_called")
    os.makedirs(output, exist_ok=True)
    for name in ("cc", "gcc", "g++", "c++", "clang", "clang++", "ninja", "ptxas", "ld"):
        text_files.write_script(output, name, f"/usr/bin/touch {mark}; exit 1")
    return output, mark
