"""The builder of FusedAdam's op on GPUs."""

from __future__ import annotations

from opforge.builders.with_calls import OpBuilderWithCalls


class FusedAdamBuilder(OpBuilderWithCalls):
    """Adam and AdamW: fused_adam_, and with DeepSpeed's arguments multi_tensor_adam.

    See opforge.ops.FusedAdam for the optimizer, ops/csrc/fused/adam.cpp for the schema.
    """

    name = "fused_adam"
    devices = ("cuda", "hip")
    sources = ["fused/adam.cpp", "cuda/fused_adam.cu", "cpu/optimizer.cpp"]
    calls = {"multi_tensor_adam": "opforge.ops.multi_tensor:multi_tensor_adam"}
    defines = {"OPFORGE_GPU": ""}
