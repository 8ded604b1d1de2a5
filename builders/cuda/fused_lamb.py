"""The builder of FusedLamb's op on GPUs."""

from __future__ import annotations

from opforge.builders.with_calls import OpBuilderWithCalls


class FusedLambBuilder(OpBuilderWithCalls):
    """LAMB: fused_lamb_, and with DeepSpeed's arguments lamb.

    See opforge.ops.FusedLamb for the optimizer, ops/csrc/fused/lamb.cpp for the schema.
    """

    name = "fused_lamb"
    devices = ("cuda", "hip")
    sources = ["fused/lamb.cpp", "cuda/fused_lamb.cu", "cpu/optimizer.cpp"]
    calls = {"lamb": "opforge.ops.multi_tensor:lamb"}
    defines = {"OPFORGE_GPU": ""}
