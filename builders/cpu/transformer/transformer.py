"""The builders of DeepSpeed's transformer layer."""

from __future__ import annotations

from opforge.builders.base import OpBuilder


class TransformerBuilder(OpBuilder):
    """BERT's transformer layer: create_transformer_layer_fp32, forward_fp32, backward_fp32, and the same in fp16.

    See opforge.ops.TransformerLayer for the module, opforge.ops.transformer.layer for the functions,
    ops/csrc/transformer/transformer.cpp for the schemas.
    """

    name = "transformer"
    sources = ["transformer/transformer.cpp"]
    python_functions = "opforge.ops.transformer.layer:functions"
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]


class StochasticTransformerBuilder(TransformerBuilder):
    """The same op: what DeepSpeed leaves to chance there is the order of sums, which is always the same on the host."""
