"""What `opforge bench` measures of each op: its cases, which lie beside the op's front end.

`CASES` has a line for each op. docs/bench.md describes how to add one.
"""

from __future__ import annotations

import importlib

from .form import OURS, Call, Case, MissingError, Place, Seconds

__all__ = ["CASES", "OURS", "Call", "Case", "MissingError", "Place", "Seconds", "load_cases"]

CASES: dict[str, str] = {
    "AsyncIOBuilder": "opforge.ops.aio.cases:ASYNC_IO",
    "CPUAdagradBuilder": "opforge.ops.optimizers.cases:CPU_ADAGRAD",
    "CPUAdamBuilder": "opforge.ops.optimizers.cases:CPU_ADAM",
    "CPULionBuilder": "opforge.ops.optimizers.cases:CPU_LION",
    "EvoformerAttnBuilder": "opforge.ops.attention_cases:EVOFORMER",
    "FPQuantizerBuilder": "opforge.ops.fp_quantizer_cases:FP_QUANTIZER",
    "FusedAdamBuilder": "opforge.ops.optimizers.cases:FUSED_ADAM",
    "FusedLambBuilder": "opforge.ops.optimizers.cases:FUSED_LAMB",
    "FusedLionBuilder": "opforge.ops.optimizers.cases:FUSED_LION",
    "InferenceCoreBuilder": "opforge.ops.transformer.inference_core_cases:INFERENCE_CORE",
    "PinMemoryBuilder": "opforge.ops.pinned_cases:PIN_MEMORY",
    "QuantizerBuilder": "opforge.ops.quantizer_cases:QUANTIZER",
    "RaggedOpsBuilder": "opforge.ops.transformer.ragged_cases:RAGGED_OPS",
    "RaggedUtilsBuilder": "opforge.ops.transformer.ragged_cases:RAGGED_UTILS",
    "RandomLTDBuilder": "opforge.ops.transformer.random_ltd_cases:RANDOM_LTD",
    "ShareMemCommBuilder": "opforge.ops.shm.cases:SHARE_MEM_COMM",
    "SparseAttnBuilder": "opforge.ops.attention_cases:SPARSE",
    "SpatialInferenceBuilder": "opforge.ops.transformer.spatial_cases:SPATIAL",
    "StochasticTransformerBuilder": "opforge.ops.transformer.layer_cases:STOCHASTIC_TRANSFORMER",
    "TransformerBuilder": "opforge.ops.transformer.layer_cases:TRANSFORMER",
    "UtilsBuilder": "opforge.ops.byte_tensor_cases:UTILS",
}
"""Builder -> "module:name" of its cases, a tuple of Case. The modules import torch only when a case runs."""


def load_cases(import_path: str) -> tuple[Case, ...]:
    """Imports and returns the cases at "module:name". Raises what that import raises, and AttributeError."""
    module, _, name = import_path.partition(":")
    cases: tuple[Case, ...] = getattr(importlib.import_module(module), name)
    return cases
