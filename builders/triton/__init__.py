"""Ops whose kernels are written in Triton, for NVIDIA's and AMD's GPUs; `TRITON_BUILDERS` lists opforge's own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import TritonOpBuilder
    from .kernels import Kernel

_MODULES = {"Kernel": "kernels", "TritonOpBuilder": "base"}
__all__ = ["TRITON_BUILDERS", "Kernel", "TritonOpBuilder"]
TRITON_BUILDERS: dict[str, str] = {
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


def __getattr__(name: str) -> Any:
    """Import a public name on first use: whoever reads the table alone need not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
