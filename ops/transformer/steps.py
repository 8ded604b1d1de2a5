"""The steps of a transformer layer, forward and backward: torch's products, norms and attention, and opforge's GELU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Form:
    """The computation of a layer."""

    heads: int
    attn_dropout_ratio: float
    hidden_dropout_ratio: float
    layer_norm_eps: float
    pre_layer_norm: bool
    attn_dropout_checkpoint: bool = False
    """Whether the kept probabilities are computed again for the gradients."""
    normalize_invertible: bool = False
    """Whether the inputs of norms are computed again, from the results."""
    gelu_checkpoint: bool = False
    """Whether the results of GELU are computed again."""


class Weights(NamedTuple):
    """The parameters of a layer, in the order of DeepSpeed's arguments. Matrices are [out, in]."""

    attn_qkvw: Tensor
    attn_qkvb: Tensor
    attn_ow: Tensor
    attn_ob: Tensor
    attn_nw: Tensor
    attn_nb: Tensor
    inter_w: Tensor
    inter_b: Tensor
    output_w: Tensor
    output_b: Tensor
    norm_w: Tensor
    norm_b: Tensor


class Normed(NamedTuple):
    """A layer norm's result with the values that its gradient needs."""

    values: Tensor
    mean: Tensor
    rstd: Tensor


class Attended(NamedTuple):
    """The result of attention with the values that its gradient needs.

    `values` are [batch, heads, tokens, head size], or merged already. A view of them must not be kept for the gradient:
    torch.compile keeps no two tensors of one memory.
    With dropout `first` are the probabilities, `second` those that were kept, scaled, and `mask` which were kept.
    Without, `first` is the logarithm of each row's sum of exponentials, and no matrix of tokens by tokens exists.
    """

    values: Tensor
    first: Tensor
    second: Tensor
    mask: Tensor


def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normed:
    """Returns the layer norm of rows."""
    return Normed(*aten.native_layer_norm(x, weight.shape, weight, bias, eps))


def norm_backward(
    grad: Tensor, x: Tensor, saved: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of a layer norm's input, weight and bias. `saved` are its mean and 1 / deviation."""
    out: tuple[Tensor, Tensor, Tensor] = aten.native_layer_norm_backward(
        grad, x, weight.shape, *saved, weight, bias, [True, True, True]
    )
    return out


def inverted(y: Tensor, saved: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor) -> Tensor:
    """Returns the input of a layer norm, from its result. No weight may be 0."""
    mean, rstd = saved
    return ((y - bias) / weight).div_(rstd).add_(mean)


def gelu(op: Any, x: Tensor, bias: Tensor) -> Tensor:
    """Returns GELU(x + bias), in the form with tanh. torch computes float64, which has no kernel."""
    if x.dtype == torch.float64:
        return torch.nn.functional.gelu(x + bias, approximate="tanh")
    out = torch.empty_like(x)
    op.bias_gelu_(out, x, bias)
    return out


def gelu_backward(op: Any, grad: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    """Returns the gradient of x, in the memory of `grad` where there is a kernel."""
    if x.dtype == torch.float64:
        out: Tensor = aten.gelu_backward(grad, x + bias, approximate="tanh")
        return out
    op.bias_gelu_grad_(grad, x, bias)
    return grad


def dropout(x: Tensor, ratio: float, training: bool) -> tuple[Tensor, Tensor]:
    """Returns x after dropout, scaled, and the mask, which is empty if nothing is dropped."""
    if not training or ratio == 0.0:
        return x, x.new_empty(0, dtype=torch.bool)
    kept: tuple[Tensor, Tensor] = aten.native_dropout(x, ratio, True)
    return kept


def dropout_backward(grad: Tensor, mask: Tensor, ratio: float) -> Tensor:
    """Returns the gradient of `dropout`'s input."""
    if mask.numel() == 0:
        return grad
    out: Tensor = aten.native_dropout_backward(grad, mask, 1.0 / (1.0 - ratio) if ratio < 1.0 else 0.0)
    return out


def split(qkv: Tensor, batch: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries, keys and values, views [batch, heads, tokens, head size] of rows [batch * tokens, 3 width]."""
    width = qkv.shape[1] // 3
    parts = qkv.view(batch, qkv.shape[0] // max(batch, 1), 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    return parts[0], parts[1], parts[2]


def attend(qkv: Tensor, mask: Tensor | None, batch: int, form: Form, training: bool) -> Attended:
    """Returns softmax(q k^T / sqrt(head size) + mask) v of rows [batch * tokens, 3 width]."""
    q, k, v = split(qkv, batch, form.heads)
    empty = qkv.new_empty(0, dtype=torch.bool)
    if qkv.numel() == 0:  # torch's kernel divides by the sizes
        return Attended(v.new_empty(batch, v.shape[2], qkv.shape[1] // 3), *(qkv.new_empty(0),) * 2, empty)
    if not training or form.attn_dropout_ratio == 0.0:
        values, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)
        return Attended(values, sums, sums, empty)
    scores = torch.matmul(q, k.transpose(2, 3)).mul_(q.shape[3] ** -0.5)
    probabilities = torch.softmax(scores if mask is None else scores.add_(mask), -1)
    kept, dropped = dropout(probabilities, form.attn_dropout_ratio, training)
    return Attended(merged(torch.matmul(kept, v)), probabilities, kept, dropped)


def merged(values: Tensor) -> Tensor:
    """Returns a result of attention as [batch, tokens, width]."""
    return values.transpose(1, 2).flatten(2) if values.dim() == 4 else values


def attend_backward(grad: Tensor, qkv: Tensor, mask: Tensor | None, saved: Attended, batch: int, form: Form) -> Tensor:
    """Returns the gradient of the rows that `attend` got."""
    if qkv.numel() == 0:
        return torch.empty_like(qkv)
    q, k, v = split(qkv, batch, form.heads)
    grad_heads = grad.view(batch, -1, form.heads, q.shape[3]).transpose(1, 2)
    out = torch.empty_like(qkv)
    parts = split(out, batch, form.heads)
    if saved.mask.numel() == 0:
        values = saved.values.view(batch, -1, form.heads, q.shape[3]).transpose(1, 2)
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_heads, q, k, v, values, saved.first, 0.0, False, attn_mask=mask
        )
    else:
        grad_kept = torch.matmul(grad_heads, v.transpose(2, 3))
        grad_probabilities = dropout_backward(grad_kept, saved.mask, form.attn_dropout_ratio)
        grad_scores = aten._softmax_backward_data(grad_probabilities, saved.first, -1, qkv.dtype)
        grad_scores.mul_(q.shape[3] ** -0.5)
        gradients = (
            torch.matmul(grad_scores, k),
            torch.matmul(grad_scores.transpose(2, 3), q),
            torch.matmul(saved.second.transpose(2, 3), grad_heads),
        )
    for part, gradient in zip(parts, gradients, strict=True):
        part.copy_(gradient)
    return out


def linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of the input, the weight and the bias of x @ weight.T + bias, for rows."""
    return torch.mm(grad, weight), torch.mm(grad.t(), x), grad.sum(0)
