"""The CPU's ops, by the builder names that `create_op_builder` accepts."""

import os
import sys

BUILDERS: dict[str, str] = {
    "AsyncIOBuilder": "opforge.builders.cpu.async_io:AsyncIOBuilder",
    "CCLCommBuilder": "opforge.builders.cpu.ccl_comm:CCLCommBuilder",
    "CPUAdagradBuilder": "opforge.builders.cpu.adagrad:CPUAdagradBuilder",
    "CPUAdamBuilder": "opforge.builders.cpu.adam:CPUAdamBuilder",
    "CPULionBuilder": "opforge.builders.cpu.lion:CPULionBuilder",
    "EvoformerAttnBuilder": "opforge.builders.cpu.evoformer_attn:EvoformerAttnBuilder",
    "FPQuantizerBuilder": "opforge.builders.cpu.fp_quantizer:FPQuantizerBuilder",
    "FusedAdamBuilder": "opforge.builders.cpu.fused_adam:FusedAdamBuilder",
    "FusedLambBuilder": "opforge.builders.cpu.fused_lamb:FusedLambBuilder",
    "FusedLionBuilder": "opforge.builders.cpu.fused_lion:FusedLionBuilder",
    "InferenceBuilder": "opforge.builders.cpu.transformer.inference_core:InferenceBuilder",
    "InferenceCoreBuilder": "opforge.builders.cpu.transformer.inference_core:InferenceCoreBuilder",
    "PinMemoryBuilder": "opforge.builders.cpu.pin_memory:PinMemoryBuilder",
    "QuantizerBuilder": "opforge.builders.cpu.quantizer:QuantizerBuilder",
    "RaggedOpsBuilder": "opforge.builders.cpu.transformer.ragged_ops:RaggedOpsBuilder",
    "RaggedUtilsBuilder": "opforge.builders.cpu.transformer.ragged_ops:RaggedUtilsBuilder",
    "RandomLTDBuilder": "opforge.builders.cpu.transformer.random_ltd:RandomLTDBuilder",
    "ShareMemCommBuilder": "opforge.builders.cpu.share_mem_comm:ShareMemCommBuilder",
    "SparseAttnBuilder": "opforge.builders.cpu.sparse_attn:SparseAttnBuilder",
    "SpatialInferenceBuilder": "opforge.builders.cpu.transformer.spatial_inference:SpatialInferenceBuilder",
    "StochasticTransformerBuilder": "opforge.builders.cpu.transformer.transformer:StochasticTransformerBuilder",
    "TransformerBuilder": "opforge.builders.cpu.transformer.transformer:TransformerBuilder",
    "UtilsBuilder": "opforge.builders.cpu.byte_tensor:UtilsBuilder",
}
UNLISTED = (
    () if os.environ.get("CCL_ROOT") or os.path.exists(f"{sys.prefix}/include/oneapi/ccl.hpp") else ("CCLCommBuilder",)
)
"""Builders that no command lists or builds here, since most machines lack what they need."""
SPLIT = {"grain": (2048, 8192, 16384, 65536, 262144), "threads": (0, 1)}
"""Choices of `opforge tune` for ops that share elements among threads: how many are worth waking a thread, and how many
threads at most; 0 for all."""
