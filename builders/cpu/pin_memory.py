"""The builder of the op that locks memory."""

from __future__ import annotations

from ctypes import c_int, c_int64, c_void_p

from opforge.builders.base import OpBuilder


class PinMemoryBuilder(OpBuilder):
    """Tensors in locked memory: pin_handle.

    See opforge.ops.pinned for the functions, ops/csrc/pinned/locked.cpp for the code that they call.
    """

    name = "pin_memory"
    abi = "c"
    sources = ["pinned/locked.cpp"]
    python_functions = "opforge.ops.pinned:functions"
    signatures = {"pin_lock": (c_int, [c_void_p, c_int64]), "pin_unlock": (c_int, [c_void_p, c_int64])}
