"""Functions over opforge's Triton kernels. Importing this package imports nothing; a front is imported when it is used.

The kernels themselves lie in `kernels/`, and are never imported from here: they are compiled ahead of time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .activations import gelu, swiglu
    from .adam import multi_adam
    from .lamb import multi_lamb
    from .lion import multi_lion
    from .norms import layer_norm, rms_norm
    from .quantizer import dequantize, quantize
    from .softmaxes import softmax

_MODULES = {
    "dequantize": "quantizer",
    "gelu": "activations",
    "layer_norm": "norms",
    "multi_adam": "adam",
    "multi_lamb": "lamb",
    "multi_lion": "lion",
    "quantize": "quantizer",
    "rms_norm": "norms",
    "softmax": "softmaxes",
    "swiglu": "activations",
}
__all__ = [
    "dequantize",
    "gelu",
    "layer_norm",
    "multi_adam",
    "multi_lamb",
    "multi_lion",
    "quantize",
    "rms_norm",
    "softmax",
    "swiglu",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
