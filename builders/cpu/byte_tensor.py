"""The builder of cast_to_byte_tensor's op, which DeepSpeed calls UtilsBuilder."""

from __future__ import annotations

from ctypes import c_int, c_int64, c_void_p

from opforge.builders.base import OpBuilder


class UtilsBuilder(OpBuilder):
    """Views of tensors as bytes: cast_to_byte_tensor.

    See opforge.ops.byte_tensor for the function, ops/csrc/byte_tensor/byte_span.cpp for the code that it calls.
    """

    name = "utils"
    abi = "c"
    sources = ["byte_tensor/byte_span.cpp"]
    python_functions = "opforge.ops.byte_tensor:functions"
    signatures = {"is_one_block": (c_int, [c_int64, c_void_p, c_void_p])}
