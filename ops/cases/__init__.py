"""What `opforge bench` measures of each op: its cases, which lie beside the op's front end.

`CASES` has a line for each op. docs/bench.md describes how to add one.
"""

from __future__ import annotations

import importlib

from .form import OURS, Call, Case, MissingError, Place, Seconds

__all__ = ["CASES", "OURS", "Call", "Case", "MissingError", "Place", "Seconds", "load_cases"]

CASES: dict[str, str] = {
    "AsyncIOBuilder": "opforge.ops.cases.aio:ASYNC_IO",
    "CPUAdagradBuilder": "opforge.ops.cases.optimizers:CPU_ADAGRAD",
    "CPUAdamBuilder": "opforge.ops.cases.optimizers:CPU_ADAM",
    "CPULionBuilder": "opforge.ops.cases.optimizers:CPU_LION",
    "EvoformerAttnBuilder": "opforge.ops.cases.attention:EVOFORMER",
    "FPQuantizerBuilder": "opforge.ops.cases.fp_quantizer:FP_QUANTIZER",
    "FusedAdamBuilder": "opforge.ops.cases.optimizers:FUSED_ADAM",
    "FusedLambBuilder": "opforge.ops.cases.optimizers:FUSED_LAMB",
    "FusedLionBuilder": "opforge.ops.cases.optimizers:FUSED_LION",
    "InferenceBuilder": "opforge.ops.cases.inference_core:INFERENCE",
    "InferenceCoreBuilder": "opforge.ops.cases.inference_core:INFERENCE_CORE",
    "PinMemoryBuilder": "opforge.ops.cases.pinned:PIN_MEMORY",
    "QuantizerBuilder": "opforge.ops.cases.quantizer:QUANTIZER",
    "RaggedOpsBuilder": "opforge.ops.cases.ragged:RAGGED_OPS",
    "RaggedUtilsBuilder": "opforge.ops.cases.ragged:RAGGED_UTILS",
    "RandomLTDBuilder": "opforge.ops.cases.random_ltd:RANDOM_LTD",
    "ShareMemCommBuilder": "opforge.ops.cases.shm:SHARE_MEM_COMM",
    "SparseAttnBuilder": "opforge.ops.cases.attention:SPARSE",
    "SpatialInferenceBuilder": "opforge.ops.cases.spatial:SPATIAL",
    "StochasticTransformerBuilder": "opforge.ops.cases.transformer:STOCHASTIC_TRANSFORMER",
    "TransformerBuilder": "opforge.ops.cases.transformer:TRANSFORMER",
    "UtilsBuilder": "opforge.ops.cases.byte_tensor:UTILS",
}
"""Builder -> "module:name" of its cases, a tuple of Case. The modules import torch only when a case runs."""


def load_cases(import_path: str) -> tuple[Case, ...]:
    """Imports and returns the cases at "module:name". Raises what that import raises, and AttributeError."""
    module, _, name = import_path.partition(":")
    cases: tuple[Case, ...] = getattr(importlib.import_module(module), name)
    return cases
