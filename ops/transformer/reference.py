"""The rules of the transformer ops in plain torch: references that the kernels are tested against.

The functions work out of place and in the dtype of their inputs: float64 tensors give a reference that rounds only in
the last of 53 bits. Indexes may have any integer dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def token_gather(activations: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
    """Returns the tokens at `indices`, [batch, retained]."""
    dimension = 1 if batch_first else 0
    rows = (indices if batch_first else indices.t()).long()
    return activations.gather(dimension, rows[..., None].expand(*rows.shape, activations.shape[2]))


def token_scatter(activations: Tensor, part: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
    """Returns the activations with `part` in place of the tokens at `indices`."""
    dimension = 1 if batch_first else 0
    rows = (indices if batch_first else indices.t()).long()
    return activations.scatter(dimension, rows[..., None].expand_as(part), part)


def mask_gather(mask: Tensor, indices: Tensor) -> Tensor:
    """Returns the rows and columns of each sequence's mask that each layer retains."""
    layers = [
        torch.stack([mask[number][:, row][:, :, row] for number, row in enumerate(layer.long())]) for layer in indices
    ]
    return torch.stack(layers) if layers else mask.new_empty((0, mask.shape[0], 1, 0, 0))


def channel_bias_add(
    rows: Tensor, bias: Tensor, other: Tensor | None = None, other_bias: Tensor | None = None
) -> Tensor:
    """Returns (rows + bias) + (other + other_bias), without what is None. Channels are the last dimension."""
    total = rows + bias
    if other is None:
        return total
    return total + (other if other_bias is None else other + other_bias)


def layer_norm(rows: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Returns (rows - mean) / sqrt(variance + epsilon) * gamma + beta (arXiv:1607.06450)."""
    centred = rows - rows.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt() * gamma + beta


def rms_norm(rows: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Returns rows / sqrt(mean square + epsilon) * gamma (arXiv:1910.07467)."""
    return rows / (rows.square().mean(-1, keepdim=True) + epsilon).sqrt() * gamma


def gated_activation(rows: Tensor, bias: Tensor | None, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns activation(gate) * value: channel 2 i of rows + bias is a gate, 2 i + 1 its value."""
    total = rows if bias is None else rows + bias
    return activation(total[..., ::2]) * total[..., 1::2]
