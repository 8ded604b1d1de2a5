"""The builder of Evoformer attention on the CPU."""

from __future__ import annotations

from opforge.builders.base import OpBuilder

ATTENTION = ["attention/forward_kernel.cpp", "attention/backward_kernel.cpp"]
"""The attention core of the host, which other ops use too."""


class EvoformerAttnBuilder(OpBuilder):
    """Attention with up to two biases that are broadcast: attention, attention_bwd and evoformer_attention.

    See opforge.ops.evoformer_attention for the function, ops/csrc/evoformer/evoformer.cpp for the schemas.
    """

    name = "evoformer_attn"
    sources = ["evoformer/evoformer.cpp", *ATTENTION]
    python_functions = "opforge.ops.evoformer:functions"
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
