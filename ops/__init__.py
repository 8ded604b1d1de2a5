"""The op library's front ends: optimizers whose steps run in opforge's own kernels, a quantizer, attention, a layer.

Importing this package imports nothing else. A front end, and torch with it, is imported when its name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge import lazy

if TYPE_CHECKING:
    from .evoformer import evoformer_attention
    from .fp_quantizer import FPQuantizer
    from .optimizers.cpu_adagrad import CPUAdagrad
    from .optimizers.cpu_adam import CPUAdam
    from .optimizers.cpu_lion import CPULion
    from .optimizers.fused_adam import FusedAdam
    from .optimizers.fused_lamb import FusedLamb
    from .optimizers.fused_lion import FusedLion
    from .transformer.module import TransformerConfig, TransformerLayer

__all__ = [
    "CPUAdagrad",
    "CPUAdam",
    "CPULion",
    "FPQuantizer",
    "FusedAdam",
    "FusedLamb",
    "FusedLion",
    "TransformerConfig",
    "TransformerLayer",
    "evoformer_attention",
]

_MODULES = {
    "CPUAdagrad": "optimizers.cpu_adagrad",
    "CPUAdam": "optimizers.cpu_adam",
    "CPULion": "optimizers.cpu_lion",
    "FPQuantizer": "fp_quantizer",
    "FusedAdam": "optimizers.fused_adam",
    "FusedLamb": "optimizers.fused_lamb",
    "FusedLion": "optimizers.fused_lion",
    "TransformerConfig": "transformer.module",
    "TransformerLayer": "transformer.module",
    "evoformer_attention": "evoformer",
}
__getattr__, __dir__ = lazy.names(__name__, _MODULES)
