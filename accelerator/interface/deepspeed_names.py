"""The names of DeepSpeed's builders that opforge has no op for, and what serves them. Imported after an error."""

from __future__ import annotations

OWN = "DeepSpeed has it: deepspeed.ops.op_builder.{name}, also after opforge.compat.deepspeed.install()"
ATTENTION = "torch.nn.functional.scaled_dot_product_attention computes the attention"
SERVED_BY = {
    "DeepCompileBuilder": "torch.compile compiles models",
    "EvoformerAttnBuilder": f"{ATTENTION}, with a bias as attn_mask",
    "GDSBuilder": "AsyncIOBuilder reads and writes files through the memory of the host",
    "InferenceBuilder": ATTENTION,
    "InferenceCoreBuilder": "",
    "InferenceCutlassBuilder": "",
    "RaggedOpsBuilder": "",
    "RaggedUtilsBuilder": "",
    "RandomLTDBuilder": "",
    "SparseAttnBuilder": "torch.nn.attention.flex_attention computes attention with a mask of blocks",
    "SpatialInferenceBuilder": "",
    "StochasticTransformerBuilder": "torch.nn.TransformerEncoderLayer is such a layer",
    "TransformerBuilder": f"torch.nn.TransformerEncoderLayer is such a layer, and {ATTENTION}",
}
"""Class name of DeepSpeed's builder -> what does its work without DeepSpeed, if anything does."""


def served_by(name: str) -> str:
    """Returns what serves a name of DeepSpeed's. Empty if it is none of them."""
    if name not in SERVED_BY:
        return ""
    own, other = OWN.format(name=name), SERVED_BY[name]
    return f"{own}; without DeepSpeed {other}" if other else own
