"""Kernels for the layers of a model: which one is used where, and for how long."""

from __future__ import annotations

from .mapping import LayerKernel
from .own import OWN_KERNELS
from .scope import explain_kernels, kernels_for

__all__ = ["OWN_KERNELS", "LayerKernel", "explain_kernels", "kernels_for"]
