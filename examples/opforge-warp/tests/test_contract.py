"""Warp's adapter keeps the contract of adapters, on the CPU."""

from __future__ import annotations

from opforge.testing import JitContract
from opforge.testing.jits import Edit

MAIN = """\
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import warp as wp

wp.config.quiet = True
import kernels


def result():
    x = wp.ones(4, dtype=float, device="cpu")
    wp.launch(kernels.outer, dim=4, inputs=[x], device="cpu")
    return x.numpy().tolist()
"""
KERNELS = """\
import warp as wp
from other import inner

FACTOR = wp.constant(2.0)


@wp.kernel
def outer(x: wp.array(dtype=float)):
    i = wp.tid()
    x[i] = inner(x[i]) * FACTOR
"""
OTHER = """\
import warp as wp


@wp.func
def inner(x: float):
    return x + 10.0
"""


class TestWarp(JitContract):
    jit = "warp"
    files = {"main.py": MAIN, "kernels.py": KERNELS, "other.py": OTHER}
    edits = {
        "function": Edit("kernels.py", "* FACTOR", "* FACTOR + 1.0"),
        "callee": Edit("other.py", "x + 10.0", "x + 20.0"),
        "closure": Edit("kernels.py", "constant(2.0)", "constant(3.0)"),
    }
