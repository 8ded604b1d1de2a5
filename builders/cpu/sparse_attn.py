"""The builder of block-sparse attention on the CPU."""

from __future__ import annotations

from opforge.builders.base import OpBuilder

from .evoformer_attn import ATTENTION


class SparseAttnBuilder(OpBuilder):
    """Block-sparse attention: sdd_segment, and what opforge.ops.sparse_attention calls.

    See opforge.ops.sparse_attention for the classes, ops/csrc/sparse_attention/sparse.cpp for the schemas.
    """

    name = "sparse_attn"
    sources = ["sparse_attention/sparse.cpp", *ATTENTION]
    python_functions = "opforge.ops.sparse_attention.layouts:functions"
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
