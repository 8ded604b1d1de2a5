"""The builder of FusedLion's op on GPUs."""

from __future__ import annotations

from opforge.builders.with_calls import OpBuilderWithCalls


class FusedLionBuilder(OpBuilderWithCalls):
    """Lion: fused_lion_, and with DeepSpeed's arguments multi_tensor_lion.

    See opforge.ops.FusedLion for the optimizer, ops/csrc/fused/lion.cpp for the schema.
    """

    name = "fused_lion"
    devices = ("cuda", "hip")
    sources = ["fused/lion.cpp", "cuda/fused_lion.cu", "cpu/optimizer.cpp"]
    calls = {"multi_tensor_lion": "opforge.ops.multi_tensor:multi_tensor_lion"}
    defines = {"OPFORGE_GPU": ""}
