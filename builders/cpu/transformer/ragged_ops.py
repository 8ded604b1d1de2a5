"""The builders of the ops for ragged batches."""

from __future__ import annotations

from ctypes import c_int, c_int64, c_void_p

from opforge.builders.base import OpBuilder


class RaggedOpsBuilder(OpBuilder):
    """Sequences of different lengths over a cache of pages: kv_rotary_embeddings, flash_attn_by_atoms and others.

    See ops/csrc/ragged/ragged_tokens.cpp, ragged_attention.cpp and ragged_moe.cpp for the schemas.
    """

    name = "ragged_device_ops"
    sources = [
        *(f"ragged/{unit}.cpp" for unit in ("ragged_tokens", "ragged_attention", "ragged_moe")),
        "attention/paged_kernel.cpp",
    ]
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]


class RaggedUtilsBuilder(OpBuilder):
    """Host buffers in locked memory, and views of buffers: allocate_fast_host_buffer, allocate_view_on and others.

    See opforge.ops.ragged.host_buffers for the functions, ops/csrc/pinned/locked.cpp for what they call.
    """

    name = "ragged_ops"
    abi = "c"
    sources = ["pinned/locked.cpp"]
    python_functions = "opforge.ops.ragged.host_buffers:functions"
    signatures = {"pin_lock": (c_int, [c_void_p, c_int64]), "pin_unlock": (c_int, [c_void_p, c_int64])}
