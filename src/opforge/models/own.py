"""`OWN_KERNELS`: a mapping from layers to opforge's own ops."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .mapping import LayerKernel

LAYERS = "opforge.models.own_layers"
"""The module of the layers. It imports torch, and is imported when a scope is entered."""


@dataclass(frozen=True)
class OwnKernel(LayerKernel):
    """A layer that calls an op of opforge's own."""

    def unfit(self, module: Any) -> str:
        """Returns why it is not for a module: it is another layer, or the op cannot be loaded here."""
        problem: str = _layers().problem(str(self.layer), self.device, module)
        return problem

    def load(self) -> type:
        """Returns the layer's class."""
        kind: type = _layers().FORMS[self.device][str(self.layer)].kind
        return kind


def _layers() -> ModuleType:
    return importlib.import_module(LAYERS)


def _of(*layers: str) -> dict[str, list[LayerKernel]]:
    return {name: [OwnKernel(name, "opforge", device="cuda")] for name in layers}


OWN_KERNELS: Mapping[str, list[LayerKernel]] = {
    **_of("RMSNorm", "LayerNorm", "Softmax", "GELU", "GeluTanh", "SiluAndMul"),
    **{
        name: [OwnKernel(name, "opforge", device=device) for device in ("cuda", "cpu")]
        for name in ("RMSNorm", "LayerNorm")
    },
}
"""Layers of torch, and layers that say by `kernel_layer_name` what they are, to opforge's own ops.

On a GPU these are its Triton ops, on the CPU its norms for inference. A layer that only has the name stays as it is.
"""
