"""Biases of channels for images of diffusion models: DeepSpeed's functions, over opforge's op.

The first argument of each function is the loaded op; the op's module holds them with that argument bound. Images are
[batch, channels, height, width] in torch's memory format channels_last, or [batch, pixels, channels]. They may be
float32, bfloat16 or float16. Each sum is rounded, as torch and DeepSpeed do it. A result has the layout of `input`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor


def nhwc_bias_add(op: Any, input: Tensor, bias: Tensor) -> Tensor:
    """Returns input + bias, with `bias` of shape [channels]."""
    return _add(op, input, bias, None, None)


def nhwc_bias_add_add(op: Any, input: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    """Returns input + bias + other, with `other` of the shape of `input`."""
    return _add(op, input, bias, other, None)


def nhwc_bias_add_bias_add(op: Any, input: Tensor, bias: Tensor, other: Tensor, other_bias: Tensor) -> Tensor:
    """Returns (input + bias) + (other + other_bias)."""
    return _add(op, input, bias, other, other_bias)


def _add(op: Any, input: Tensor, bias: Tensor, other: Tensor | None, other_bias: Tensor | None) -> Tensor:
    rows = _rows(input, "input")
    out = torch.empty_like(rows)
    other = None if other is None else _rows(other, "other")
    op.channel_bias_add_(out, rows, bias.contiguous(), other, None if other_bias is None else other_bias.contiguous())
    return out.permute(0, 3, 1, 2) if input.dim() == 4 else out


def _rows(image: Tensor, name: str) -> Tensor:
    """Returns the values with the channels last, contiguous: a view if they lie so in memory."""
    if image.dim() not in (3, 4):
        raise ValueError(
            f"{name} has shape {tuple(image.shape)}, expected [batch, channels, height, width] in the memory format"
            " channels_last, or [batch, pixels, channels]"
        )
    return (image.permute(0, 2, 3, 1) if image.dim() == 4 else image).contiguous()


def functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op spatial_inference."""
    bound = (nhwc_bias_add, nhwc_bias_add_add, nhwc_bias_add_bias_add)
    return {function.__name__: partial(function, op) for function in bound}
