"""The names of DeepSpeed's builders: those that opforge has no op for, and those whose ops get a device's tensors.

docs/migrating.md has the first list, with why and what to use. No hit imports this.
"""

from __future__ import annotations

NOT_MADE = {
    "DeepCompileBuilder": (
        "it is part of DeepSpeed's own compiler, tied to NCCL and to torch's c10d",
        "torch.compile compiles models",
    ),
    "FlashAttentionBuilder": (
        "it is Intel's own attention, for xpu alone",
        "torch.nn.functional.scaled_dot_product_attention computes attention",
    ),
    "GDSBuilder": (
        "cuFile needs a GPU, NVIDIA's driver for file systems and a disk that it supports: none of it can be tried"
        " where they are missing",
        "AsyncIOBuilder reads and writes files through the memory of the host",
    ),
    "InferenceCutlassBuilder": ("its kernels are in a closed library", "torch's operators have its products"),
}
"""Class name of DeepSpeed's builder -> why opforge has none, and what does its work."""


DEVICE_BUILDERS = (
    "EvoformerAttnBuilder",
    "FPQuantizerBuilder",
    "FusedAdamBuilder",
    "FusedLambBuilder",
    "FusedLionBuilder",
    "InferenceBuilder",
    "InferenceCoreBuilder",
    "QuantizerBuilder",
    "RaggedOpsBuilder",
    "RaggedUtilsBuilder",
    "RandomLTDBuilder",
    "SpatialInferenceBuilder",
    "StochasticTransformerBuilder",
    "TransformerBuilder",
)
"""The builders whose ops DeepSpeed calls with tensors of the device."""


def served_by(name: str) -> str:
    """Returns why no op has a name of DeepSpeed's, and the replacement. Empty for any other name."""
    builder = f"{name.removesuffix('Builder')}Builder"
    if builder not in NOT_MADE:
        return ""
    reason, use = NOT_MADE[builder]
    own = f"DeepSpeed's own {builder} stays usable, also after opforge.compat.deepspeed.install()"
    return f"opforge does not make it: {reason}. Instead, {use}. {own}"
