"""Ops with kernels written in Triton, for NVIDIA's and AMD's GPUs. `TRITON_BUILDERS` lists opforge's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.foundation import lazy

if TYPE_CHECKING:
    from opforge.builders.triton_op_builder.builder import TritonOpBuilder
    from opforge.builders.triton_op_builder.kernel import Kernel
    from opforge.builders.triton_op_builder.tables import configs_of

_MODULES = {"Kernel": "kernel", "TritonOpBuilder": "builder", "configs_of": "tables"}
__all__ = ["TRITON_BUILDERS", "Kernel", "TritonOpBuilder", "configs_of"]
TRITON_BUILDERS: dict[str, str] = {
    "EvoformerAttnBuilder": "opforge.builders.triton.attention:EvoformerAttnBuilder",
    "InferenceCoreBuilder": "opforge.builders.triton.transformer:InferenceCoreBuilder",
    "RaggedOpsBuilder": "opforge.builders.triton.ragged:RaggedOpsBuilder",
    "RandomLTDBuilder": "opforge.builders.triton.transformer:RandomLTDBuilder",
    "SparseAttnBuilder": "opforge.builders.triton.attention:SparseAttnBuilder",
    "SpatialInferenceBuilder": "opforge.builders.triton.transformer:SpatialInferenceBuilder",
    "TritonAdamBuilder": "opforge.builders.triton.optimizers:TritonAdamBuilder",
    "TritonGeluBuilder": "opforge.builders.triton.activations:TritonGeluBuilder",
    "TritonLambBuilder": "opforge.builders.triton.optimizers:TritonLambBuilder",
    "TritonLayerNormBuilder": "opforge.builders.triton.norms:TritonLayerNormBuilder",
    "TritonLionBuilder": "opforge.builders.triton.optimizers:TritonLionBuilder",
    "TritonQuantizerBuilder": "opforge.builders.triton.quantizer:TritonQuantizerBuilder",
    "TritonRMSNormBuilder": "opforge.builders.triton.norms:TritonRMSNormBuilder",
    "TritonSoftmaxBuilder": "opforge.builders.triton.softmax:TritonSoftmaxBuilder",
    "TritonSwigluBuilder": "opforge.builders.triton.activations:TritonSwigluBuilder",
}
"""Name of each Triton op of opforge's own -> "module:class" of its builder."""
__getattr__, __dir__ = lazy.names(__name__, _MODULES, "opforge.builders.triton_op_builder")
