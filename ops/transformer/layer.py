"""DeepSpeed's functions of the transformer layer, over opforge's op and torch's.

The first argument of each function is the loaded op; the op's module holds them with that argument bound. The layer is
BERT's: attention with one matrix for queries, keys and values, and two linear layers with GELU (in the form with tanh)
between them. Each half adds its input. The norms are before the halves (`pre_layer_norm`) or after them.

Dropout draws from torch's default generator, so torch.manual_seed and activation checkpointing apply; the `seed` of
`create_transformer_layer` does not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import steps
from .steps import Attended, Form, Weights

_layers: dict[int, Form] = {}
"""The layers that were created, by their ids."""


def create_transformer_layer(
    op: Any,
    layer_id: int,
    batch_size: int,
    hidden_dim: int,
    num_heads: int,
    intermediate_size: int,
    attn_dropout_ratio: float,
    hidden_dropout_ratio: float,
    layer_norm_eps: float,
    seed: int,
    pre_or_postLayerNorm: bool,
    test_gemm: bool,
    attn_dropout_checkpoint: bool,
    normalize_invertible: bool,
    gelu_checkpoint: bool,
    stochastic_mode: bool,
) -> int:
    """Stores the configuration of a layer under its id, for later calls, and returns 0. An id may be used again."""
    numbers = (num_heads, attn_dropout_ratio, hidden_dropout_ratio, layer_norm_eps)
    modes = (pre_or_postLayerNorm, attn_dropout_checkpoint, normalize_invertible, gelu_checkpoint)
    _layers[layer_id] = checked(Form(*numbers, *modes), hidden_dim)
    return 0


def checked(form: Form, width: int) -> Form:
    """Returns the form of a layer of that width. Raises ValueError."""
    if form.heads < 1 or width % form.heads:
        raise ValueError(f"num_heads is {form.heads}, expected a number that divides hidden_dim, {width}")
    for name in ("attn_dropout_ratio", "hidden_dropout_ratio"):
        if not 0.0 <= getattr(form, name) < 1.0:
            raise ValueError(f"{name} is {getattr(form, name)}, expected a number from 0 to less than 1")
    return form


def _form(layer_id: int) -> Form:
    try:
        return _layers[layer_id]
    except KeyError:
        raise ValueError(
            f"layer_id is {layer_id}, expected one that create_transformer_layer_fp32 or _fp16 has got: call it first"
        ) from None


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _check(form: Form, input: Tensor, input_mask: Tensor | None, weights: Weights) -> None:
    """Raises ValueError unless the tensors fit."""
    if input.device.type != "cpu":
        raise ValueError(
            f"input is on {input.device}, expected a tensor on the CPU: TransformerBuilder's op is the host's on every "
            "accelerator. Move it with .cpu(), or use torch.nn.TransformerEncoderLayer there"
        )
    if input.dim() != 3:
        raise ValueError(f"input has shape {tuple(input.shape)}, expected [batch, tokens, channels]")
    if input.dtype not in DTYPES:
        offered = ", ".join(map(str, DTYPES))
        raise ValueError(f"input is {input.dtype}, expected one of {offered}: convert it with .float()")
    if input.shape[2] % form.heads:
        raise ValueError(f"input has {input.shape[2]} channels, expected a multiple of the layer's {form.heads} heads")
    width, inner = input.shape[2], weights.inter_b.numel()
    shapes = ((3 * width, width), (3 * width,), (width, width), *((width,),) * 3, (inner, width), (inner,))
    for name, tensor, shape in zip(Weights._fields, weights, (*shapes, (width, inner), *((width,),) * 3), strict=True):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}, by the shape of input")
        if tensor.dtype != input.dtype or tensor.device != input.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}, expected {input.dtype} on {input.device}, as input is"
            )
    if input_mask is not None and input_mask.numel():
        if input_mask.device != input.device:
            raise ValueError(f"input_mask is on {input_mask.device}, expected {input.device}, where input is")
        try:
            fits: tuple[int, ...] = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
                input_mask.shape, (input.shape[0], form.heads, *(input.shape[1],) * 2)
            )
        except RuntimeError:
            fits = ()
        if fits != (input.shape[0], form.heads, input.shape[1], input.shape[1]) or not input_mask.is_floating_point():
            raise ValueError(
                f"input_mask is {input_mask.dtype} of shape {tuple(input_mask.shape)}, expected numbers that are added"
                f" to scores of shape {(input.shape[0], form.heads, input.shape[1], input.shape[1])}, such as"
                f" [{input.shape[0]}, 1, 1, {input.shape[1]}]"
            )


def _mask(input_mask: Tensor | None, input: Tensor) -> Tensor | None:
    """Returns the mask with four dimensions in the input's dtype; None if it is empty."""
    if input_mask is None or input_mask.numel() == 0:
        return None
    mask = input_mask
    if mask.dtype != input.dtype:
        # The lowest number of a wider dtype would become -inf, and a row of such scores NaN. Half of the lowest one is
        # as good, and stays finite when a score is added.
        most = torch.finfo(input.dtype).max / 2
        if most < torch.finfo(mask.dtype).max:
            mask = torch.where(mask.isinf(), mask, mask.clamp(-most, most))
        mask = mask.to(input.dtype)
    mask = mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))
    return mask.expand(-1, -1, input.shape[1], input.shape[1]) if mask.shape[2] == 1 else mask


def forward(
    op: Any,
    layer_id: int,
    input: Tensor,
    input_mask: Tensor,
    *rest: Any,
) -> list[Tensor]:
    """Computes a layer.

    Args:
        op: The loaded op.
        layer_id: The id that the layer was created with.
        input: [batch, tokens, channels].
        input_mask: Numbers that are added to the scores, such as [batch, 1, 1, tokens]; empty for none.
        rest: The twelve parameters (`Weights`), then training_mode, and the modes that the layer was created with:
            prelayernorm, attn_dropout_checkpoint, normalize_invertible and gelu_checkpoint.

    Returns:
        The output, then the sixteen tensors that `backward` needs: inp_norm, qkv_tf, soft_out, ctx_bufB, attn_o_inp,
        add_res, ff1_inp, gelu_inp, ff2_inp, three masks of dropout, and var and mean of two norms. "var" is
        1 / deviation; "soft_out" is described at `steps.Attended`.
    """
    if len(rest) != 17:
        raise TypeError(f"forward has {len(rest) + 3} arguments, expected 20: see DeepSpeed's forward_fp32")
    results = compute(op, _form(layer_id), input, input_mask, Weights(*rest[:12]), bool(rest[12]))
    results[5] = steps.merged(results[5])
    for at in (1, 6, 7):
        results[at] = results[at].view_as(input)
    return results


def compute(
    op: Any,
    form: Form,
    input: Tensor,
    input_mask: Tensor | None,
    weights: Weights,
    training: bool,
) -> list[Tensor]:
    """Returns the results of `forward`, for a form. Those after the output may be rows, and none is a view."""
    _check(form, input, input_mask, weights)
    batch, width, eps, pre_norm = input.shape[0], input.shape[2], form.layer_norm_eps, form.pre_layer_norm
    mask, rows = _mask(input_mask, input), input.reshape(-1, width)
    if pre_norm:
        first = steps.norm(rows, weights.norm_w, weights.norm_b, eps)
    qkv = torch.addmm(weights.attn_qkvb, first.values if pre_norm else rows, weights.attn_qkvw.t())
    attended = steps.attend(qkv, mask, batch, form, training)
    add_res, attn_mask = _added(
        rows, steps.merged(attended.values).reshape(rows.shape), weights.attn_ow, weights.attn_ob, form, training
    )
    second = steps.norm(add_res, weights.attn_nw, weights.attn_nb, eps)
    gelu_inp = torch.mm(second.values, weights.inter_w.t())
    ff2_inp = steps.gelu(op, gelu_inp, weights.inter_b)
    residual = add_res if pre_norm else second.values
    output, out_mask = _added(residual, ff2_inp, weights.output_w, weights.output_b, form, training)
    inp_norm = first.values if pre_norm else output
    if not pre_norm:
        first = steps.norm(output, weights.norm_w, weights.norm_b, eps)
        output = first.values
        if form.normalize_invertible:
            inp_norm = output
    # Not a view of the output: autograd lets nobody change one in place.
    shaped = torch.ops.aten._unsafe_view(output, input.shape)
    inner = (gelu_inp, gelu_inp) if form.gelu_checkpoint else (gelu_inp, ff2_inp)
    kept = attended.first if form.attn_dropout_checkpoint else attended.second
    middle = (attended.values, second.values if form.normalize_invertible else add_res, second.values)
    masks = (attended.mask, attn_mask, out_mask)
    norms = (second.rstd, second.mean, first.rstd, first.mean)
    return [shaped, inp_norm, qkv, attended.first, kept, *middle, *inner, *masks, *norms]


def _added(
    residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, form: Form, training: bool
) -> tuple[Tensor, Tensor]:
    """Returns residual + dropout(x @ weight.T + bias), with the dropout's mask."""
    # The sum is not what the operations in place return: for torch.compile that is a view.
    if not training or form.hidden_dropout_ratio == 0.0:
        total = torch.add(residual, bias)
        total.addmm_(x, weight.t())
        return total, residual.new_empty(0, dtype=torch.bool)
    total, mask = steps.dropout(torch.addmm(bias, x, weight.t()), form.hidden_dropout_ratio, training)
    total.add_(residual)
    return total, mask


def backward(op: Any, layer_id: int, grad_output: Tensor, *rest: Tensor) -> list[Tensor]:
    """Computes the gradients of a layer.

    Args:
        op: The loaded op.
        layer_id: The id that the layer was created with.
        grad_output: The gradient of the output.
        rest: The seventeen tensors of `forward`, its input and mask, and the twelve parameters. As in DeepSpeed, with
            `normalize_invertible` inp_norm may stand for the output and the input, and ff1_inp for add_res.

    Returns:
        The gradients of the input and of the twelve parameters.
    """
    if len(rest) != 31:
        raise TypeError(f"backward has {len(rest) + 2} arguments, expected 33: see DeepSpeed's backward_fp32")
    form, saved, input, input_mask, weights = _form(layer_id), rest[:17], rest[17], rest[18], Weights(*rest[19:])
    _check(form, input, input_mask, weights)
    _check_saved(form, grad_output, saved, input, weights)
    return gradients(op, form, grad_output, saved, input, input_mask, weights)


SAVED = [
    "output",
    "inp_norm",
    "qkv_tf",
    "soft_out",
    "ctx_bufB",
    "attn_o_inp",
    "add_res",
    "ff1_inp",
    "gelu_inp",
    "ff2_inp",
    "attn_prob_dropout_mask",
    "attn_output_dropout_mask",
    "layer_output_dropout_mask",
    "attn_layer_norm_var",
    "attn_layer_norm_mean",
    "layer_norm_var",
    "layer_norm_mean",
]
"""DeepSpeed's names of what `forward` returns."""


def _check_saved(form: Form, grad_output: Tensor, saved: tuple[Tensor, ...], input: Tensor, weights: Weights) -> None:
    """Raises ValueError unless the gradient and the tensors of `forward` fit the input."""
    batch, tokens, width = input.shape
    rows = batch * tokens
    numbers = dict.fromkeys(("output", "inp_norm", "attn_o_inp", "add_res", "ff1_inp"), rows * width)
    numbers |= {"qkv_tf": 3 * rows * width}
    numbers |= dict.fromkeys(("gelu_inp", "ff2_inp"), rows * weights.inter_b.numel())
    numbers |= dict.fromkeys(SAVED[-4:], rows)
    named = {"grad_output": grad_output} | dict(zip(SAVED, saved, strict=True))
    for name, tensor in named.items():
        count = numbers.get(name, tensor.numel())
        if name == "grad_output" and tensor.shape != input.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected that of input, {tuple(input.shape)}")
        if tensor.numel() != count or tensor.device != input.device:
            raise ValueError(
                f"{name} has {tensor.numel()} elements on {tensor.device}, expected {count} on {input.device}: pass "
                "what the forward of this input has returned"
            )


def gradients(
    op: Any,
    form: Form,
    grad_output: Tensor,
    saved: tuple[Tensor, ...],
    input: Tensor,
    input_mask: Tensor | None,
    weights: Weights,
) -> list[Tensor]:
    """Returns the results of `backward`, for a form. `saved` is the result of `compute`."""
    batch, _tokens, width = grad_output.shape
    pre_norm, ratio, mask = form.pre_layer_norm, form.hidden_dropout_ratio, _mask(input_mask, grad_output)
    output, inp_norm, qkv, soft, kept, attn_o_inp, add_res, ff1_inp, gelu_inp, ff2_inp, *others = saved
    attn_prob_mask, attn_mask, out_mask, attn_rstd, attn_mean, rstd, mean = others
    attn_o_inp = steps.merged(attn_o_inp)
    rows = [
        tensor.reshape(-1, width) for tensor in (grad_output, output, inp_norm, attn_o_inp, add_res, ff1_inp, input)
    ]
    grad, out, first, attended, add_res, ff1_inp, input = rows
    outer, inner = (mean, rstd), (attn_mean, attn_rstd)
    if not pre_norm:
        total = steps.inverted(out, outer, weights.norm_w, weights.norm_b) if form.normalize_invertible else first
        grad, *of_norm = steps.norm_backward(grad, total, outer, weights.norm_w, weights.norm_b)
    if form.gelu_checkpoint:
        ff2_inp = steps.gelu(op, gelu_inp, weights.inter_b)
    dropped = steps.dropout_backward(grad, out_mask, ratio)
    grad_inner, grad_output_w, grad_output_b = steps.linear_backward(dropped, ff2_inp, weights.output_w)
    grad_inner = steps.gelu_backward(op, grad_inner, gelu_inp, weights.inter_b)
    grad_ff1, grad_inter_w, grad_inter_b = steps.linear_backward(grad_inner, ff1_inp, weights.inter_w)
    if not pre_norm:
        grad_ff1.add_(grad)
    if form.normalize_invertible:
        add_res = steps.inverted(ff1_inp, inner, weights.attn_nw, weights.attn_nb)
    grad_res, *of_attn_norm = steps.norm_backward(grad_ff1, add_res, inner, weights.attn_nw, weights.attn_nb)
    if pre_norm:
        grad_res.add_(grad)
    dropped = steps.dropout_backward(grad_res, attn_mask, ratio)
    grad_attended, grad_ow, grad_ob = steps.linear_backward(dropped, attended, weights.attn_ow)
    if form.attn_dropout_checkpoint:
        kept = steps.dropout_backward(soft, attn_prob_mask, form.attn_dropout_ratio)
    states = Attended(attended, soft, kept, attn_prob_mask)
    grad_qkv = steps.attend_backward(grad_attended, qkv, mask, states, batch, form)
    of_qkv = steps.linear_backward(grad_qkv, first if pre_norm else input, weights.attn_qkvw)
    grad_input, grad_qkvw, grad_qkvb = of_qkv
    if pre_norm:
        if form.normalize_invertible:
            input = steps.inverted(first, outer, weights.norm_w, weights.norm_b)
        grad_input, *of_norm = steps.norm_backward(grad_input, input, outer, weights.norm_w, weights.norm_b)
    grad_input.add_(grad_res)
    attention = (grad_qkvw, grad_qkvb, grad_ow, grad_ob, *of_attn_norm)
    feed_forward = (grad_inter_w, grad_inter_b, grad_output_w, grad_output_b, *of_norm)
    return [grad_input.view_as(grad_output), *attention, *feed_forward]


def functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of a loaded op, transformer or stochastic_transformer."""
    bound: dict[str, Any] = {
        "create_transformer_layer": create_transformer_layer,
        "forward": forward,
        "backward": backward,
    }
    return {f"{name}_{dtype}": partial(call, op) for name, call in bound.items() for dtype in ("fp32", "fp16")}
