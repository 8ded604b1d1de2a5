"""Kernels for the layers of a model: which kernel each layer uses, and for how long."""

from __future__ import annotations

from . import own
from .mapping import LayerKernel
from .scope import explain_kernels, kernels_for

__all__ = ["OWN_KERNELS", "LayerKernel", "explain_kernels", "kernels_for"]

OWN_KERNELS = own.OWN_KERNELS
"""A mapping that comes with opforge: layers of torch to opforge's own ops."""
