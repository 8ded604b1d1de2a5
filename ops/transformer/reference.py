"""The rules of the transformer ops in plain torch: references that the kernels are tested against.

The functions work out of place and in the dtype of their inputs: float64 tensors give a reference that rounds only in
the last of 53 bits. Indexes may have any integer dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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


def transformer_layer(
    rows: Tensor,
    mask: Tensor | None,
    weights: Sequence[Tensor],
    heads: int,
    eps: float,
    pre_layer_norm: bool,
    kept: Sequence[Tensor] | None = None,
) -> Tensor:
    """Returns a layer of BERT (arXiv:1810.04805) of rows [batch, tokens, channels].

    `weights` are in the order of `opforge.ops.transformer.steps.Weights`; `kept` are what attention's probabilities and
    the two halves' results are multiplied by, for dropout.
    """
    qkv_w, qkv_b, out_w, out_b, attn_nw, attn_nb, inter_w, inter_b, output_w, output_b, norm_w, norm_b = weights
    of_scores, of_attention, of_output = kept or (1.0, 1.0, 1.0)
    batch, tokens, width = rows.shape
    source = layer_norm(rows, norm_w, norm_b, eps) if pre_layer_norm else rows
    parts = (source @ qkv_w.T + qkv_b).view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    scores = parts[0] @ parts[1].transpose(2, 3) / (width // heads) ** 0.5
    probabilities = (scores if mask is None else scores + mask).softmax(-1) * of_scores
    attended = (probabilities @ parts[2]).transpose(1, 2).reshape(rows.shape)
    total = (attended @ out_w.T + out_b) * of_attention + rows
    normed = layer_norm(total, attn_nw, attn_nb, eps)
    inner = gelu(normed @ inter_w.T + inter_b)
    output = (inner @ output_w.T + output_b) * of_output + (total if pre_layer_norm else normed)
    return output if pre_layer_norm else layer_norm(output, norm_w, norm_b, eps)


def gelu(x: Tensor) -> Tensor:
    """Returns x * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (arXiv:1606.08415, section 2)."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
