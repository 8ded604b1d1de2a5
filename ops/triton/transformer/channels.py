"""Biases of channels on a GPU: the kernel under the functions of opforge.ops.spatial."""

from __future__ import annotations

from torch import Tensor

from opforge.builders.triton import transformer as builders
from opforge.ops import spatial
from opforge.ops.triton import registry

from .checks import check_like, form

OP = builders.SpatialInferenceBuilder.name


class Channels:
    """The kernel by the name and schema of the host's op."""

    @staticmethod
    def channel_bias_add_(
        out: Tensor, input: Tensor, bias: Tensor, other: Tensor | None = None, other_bias: Tensor | None = None
    ) -> None:
        """Writes (input + bias) + (other + other_bias) to `out`, without what is None."""
        images = {"input": input, "out": out} | ({"other": other} if other is not None else {})
        biases = {"bias": bias} | ({"other_bias": other_bias} if other_bias is not None else {})
        dtype = check_like(OP, "input", images, biases)
        name = "bias" if other is None else "bias_add" if other_bias is None else "bias_add_bias"
        tensors = [input, bias, *(tensor for tensor in (other, other_bias) if tensor is not None), out]
        if input.numel():
            grid = (-(-input.numel() // builders.BLOCK), 1, 1)
            kernel = f"{name}_{dtype}_{form(input.shape[-1], tensors)}"
            registry.kernels_of(builders.SpatialInferenceBuilder).launch(
                kernel, grid, *tensors, input.numel(), input.shape[-1]
            )


bind = registry.binding(spatial.functions(Channels()))
