"""The op library's front ends: optimizers whose steps run in opforge's own kernels, a quantizer, attention, a layer.

Importing this package imports nothing else. A front end, and torch with it, is imported when its name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.foundation import lazy

if TYPE_CHECKING:
    from opforge.ops.adagrad.cpu_adagrad import CPUAdagrad
    from opforge.ops.adam.cpu_adam import CPUAdam
    from opforge.ops.adam.fused_adam import FusedAdam
    from opforge.ops.lamb.fused_lamb import FusedLamb
    from opforge.ops.lion.cpu_lion import CPULion
    from opforge.ops.lion.fused_lion import FusedLion

    from .evoformer import evoformer_attention
    from .fp_quantizer import FPQuantizer
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
    "CPUAdagrad": "adagrad.cpu_adagrad",
    "CPUAdam": "adam.cpu_adam",
    "CPULion": "lion.cpu_lion",
    "FPQuantizer": "fp_quantizer",
    "FusedAdam": "adam.fused_adam",
    "FusedLamb": "lamb.fused_lamb",
    "FusedLion": "lion.fused_lion",
    "TransformerConfig": "transformer.module",
    "TransformerLayer": "transformer.module",
    "evoformer_attention": "evoformer",
}
__getattr__, __dir__ = lazy.names(__name__, _MODULES)
