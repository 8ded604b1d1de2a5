"""`OWN_KERNELS`: a mapping from layers to opforge's own ops."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opforge.errors import OpforgeError

from . import layers
from .mapping import LayerKernel

LAYERS = "opforge.ops.layers"
"""The module of the layers. It imports torch, and is imported when a scope is entered."""
UNKNOWN = "it is neither torch's layer nor one that names its kind by kernel_layer_name"


@dataclass(frozen=True)
class OwnKernel(LayerKernel):
    """A layer that calls an op of opforge's own."""

    is_for_any_model = True

    def unfit(self, module: Any) -> str:
        """Returns why it is not for a module: it is another layer, or the op cannot be loaded here."""
        form, kind = _form(self), type(module)
        if kind is not form.torchs and getattr(module, "kernel_layer_name", "") != self.layer:
            return UNKNOWN
        if found := layers.problem(form.kind, kind) or form.problem(module):
            return str(found)
        try:
            form.load()
        except OpforgeError as error:
            return f"its op cannot be loaded: {error}"
        return ""

    def load(self) -> type:
        """Returns the layer's class."""
        kind: type = _form(self).kind
        return kind


def _form(entry: LayerKernel) -> Any:
    return importlib.import_module(LAYERS).FORMS[entry.device][str(entry.layer)]


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
