"""The cases of each op: its functions, promises and timed sizes. The bench, the tuning, the check and tests use them.

`CASES` has a line for each op of ours. Other packages name theirs in their builders (`OpBuilder.cases`), and those of a
kernel package by an entry point in the group GROUP, whose name is ORG/NAME. docs/cases.md describes how to add one.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from .case import ORDINARY, OURS, Call, Case, MissingError, Place, Prepared, Promise, Seconds

__all__ = [
    "CASES",
    "GROUP",
    "ORDINARY",
    "OURS",
    "Call",
    "Case",
    "MissingError",
    "Place",
    "Prepared",
    "Promise",
    "Seconds",
    "cases_of",
    "load_cases",
    "path_of",
]

GROUP = "opforge.cases"
"""The group of entry points by which a kernel package names its cases, "module:NAME"."""

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


def load_cases(path: str) -> tuple[Case, ...]:
    """Imports and returns the cases at "module:NAME". Raises what that import raises, AttributeError, and TypeError."""
    found = resolve_name(path)
    cases = (found,) if isinstance(found, Case) else found
    if not (isinstance(cases, tuple) and cases and all(isinstance(case, Case) for case in cases)):
        raise TypeError(f"{path!r} is not a Case, or a tuple of them")
    return cases


def path_of(builder: Any) -> str:
    """Returns where the cases of a builder's class are, "module:NAME". Empty if it has none."""
    return getattr(builder, "cases", "") or CASES.get(builder.__name__, "")


def cases_of(builder: Any) -> tuple[Case, ...]:
    """Returns the cases of a builder's class; none if it has none. Raises what `load_cases` raises."""
    path = path_of(builder)
    return load_cases(path) if path else ()
