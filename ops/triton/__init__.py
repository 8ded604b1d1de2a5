"""Functions that launch opforge's Triton kernels.

Importing this package imports nothing else; a module is imported when one of its functions is first used. The kernels
are in `kernels/`. They are compiled ahead of time and never imported from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.foundation import lazy

if TYPE_CHECKING:
    from .activations import gelu, swiglu
    from .norms import layer_norm, rms_norm
    from .optimizers.adam import fused_adam_
    from .optimizers.lamb import fused_lamb_
    from .optimizers.lion import fused_lion_
    from .quantizer import dequantize, quantize
    from .softmaxes import softmax

_MODULES = {
    "dequantize": "quantizer",
    "fused_adam_": "optimizers.adam",
    "fused_lamb_": "optimizers.lamb",
    "fused_lion_": "optimizers.lion",
    "gelu": "activations",
    "layer_norm": "norms",
    "quantize": "quantizer",
    "rms_norm": "norms",
    "softmax": "softmaxes",
    "swiglu": "activations",
}
__all__ = [
    "dequantize",
    "fused_adam_",
    "fused_lamb_",
    "fused_lion_",
    "gelu",
    "layer_norm",
    "quantize",
    "rms_norm",
    "softmax",
    "swiglu",
]
__getattr__, __dir__ = lazy.names(__name__, _MODULES)
