"""The functions of DeepSpeed's first inference engine that keep nothing between calls, on the host.

Names, arguments and results are those of DeepSpeed's `InferenceBuilder`. Norms and activations are those of
`InferenceCoreBuilder`, products are torch's. Arithmetic but that of products is in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GELU, RELU, GATED_GELU, GATED_SILU = 1, 2, 3, 4
"""DeepSpeed's ActivationFuncType."""
ACTIVATIONS = {GELU: 0, RELU: 1}
"""Activation -> the number of `bias_activation`."""
GATES: dict[int, Callable[[Tensor], Tensor]] = {GATED_GELU: functional.gelu, GATED_SILU: functional.silu}


def _core() -> Any:
    from opforge.ops.host_op import host_op

    return host_op("InferenceCoreBuilder")


def _float_weights(q_int8: bool) -> None:
    """Raises ValueError for weights of 8 bits."""
    if q_int8:
        raise ValueError("q_int8 is True, expected False: the host has no products of int8; dequantize the weights")


def _product(values: Tensor, weight: Tensor, transposed: bool) -> Tensor:
    """Returns values @ weight, or values @ weight.T if the weight is stored [out, in]."""
    return torch.matmul(values, weight.t() if transposed else weight)


def layer_norm(input: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Returns the layer norm of rows."""
    values = input.contiguous()
    out = torch.empty_like(values)
    _core().layer_norm(out, values, gamma.contiguous(), beta.contiguous(), epsilon)
    return out


def layer_norm_residual_store_pre_ln_res(
    input: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> list[Tensor]:
    """Returns the layer norm of input + bias + residual, and that sum. The sum is rounded to the dtype first."""
    total = (input.float() + bias.float() + residual.float()).to(input.dtype)
    return [layer_norm(total, gamma, beta, epsilon), total]


def layer_norm_residual(
    input: Tensor, bias: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> Tensor:
    """Returns the layer norm of input + bias + residual."""
    total = input.float() + bias.float() + residual.float()
    return layer_norm(total, gamma.float(), beta.float(), epsilon).to(input.dtype)


def rms_norm(input: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Returns the RMS norm of rows."""
    values = input.contiguous()
    out = torch.empty_like(values)
    _core().rms_norm(out, values, gamma.contiguous(), epsilon)
    return out


def pre_rms_norm(input: Tensor, residual: Tensor, gamma: Tensor, epsilon: float) -> list[Tensor]:
    """Returns the RMS norm of input + residual, and that sum."""
    values = input.contiguous()
    out, total = torch.empty_like(values), torch.empty_like(values)
    _core().rms_pre_norm(out, total, values, residual.contiguous(), gamma.contiguous(), epsilon)
    return [out, total]


def gated_activation(activation: Tensor, bias: Tensor, actFun: int) -> Tensor:
    """Returns the first half of the channels times the activation of the second, with the bias added to both."""
    if actFun not in GATES:
        raise ValueError(f"actFun is {actFun}, expected {GATED_GELU} (gated GELU) or {GATED_SILU} (gated SiLU)")
    values, gate = (activation.float() + bias.float()).chunk(2, dim=-1)
    return (values * GATES[actFun](gate)).to(activation.dtype)


def vector_add(a: Tensor, b: Tensor, gamma: float) -> Tensor:
    """Writes gamma * a + b to `a`, and returns it."""
    return a.copy_(gamma * a.float() + b.float())


def moe_res_matmul(moe_res: Tensor, coef: Tensor, output: Tensor) -> Tensor:
    """Writes moe_res * c1 + output * c2 to `output`, and returns it; `coef` is [..., 2 * channels, tokens]: c1, c2."""
    first, second = coef.transpose(-1, -2).chunk(2, dim=-1)
    return output.copy_(moe_res.float() * first.float() + output.float() * second.float())


def _bias_activation(number: int, input: Tensor, bias: Tensor) -> Tensor:
    """Writes the activation of input + bias to the input if it is contiguous, and returns it."""
    values = input.contiguous()
    _core().bias_activation(values, bias.contiguous(), number)
    return values


def vector_matmul(
    input: Tensor, weight: Tensor, async_op: bool, q_scale: Tensor, q_int8: bool, transposed_mode: bool
) -> Tensor:
    """Returns input @ weight. `async_op` and `q_scale` are not used."""
    _float_weights(q_int8)
    return _product(input, weight, transposed_mode)


def qkv_gemm(
    input: Tensor,
    weight: Tensor,
    q_scale: Tensor,
    bias: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    add_bias: bool,
    q_int8: bool,
    transposed_mode: bool,
) -> list[Tensor]:
    """Returns the product of the layer norm with the weight, with the bias if `add_bias`; and the norm."""
    _float_weights(q_int8)
    norm = layer_norm(input, gamma, beta, eps)
    out = _product(norm, weight, transposed_mode)
    return [out + bias if add_bias else out, norm]


def rms_qkv_gemm(
    input: Tensor, weight: Tensor, q_scale: Tensor, gamma: Tensor, eps: float, q_int8: bool, transposed_mode: bool
) -> list[Tensor]:
    """Returns the product of the RMS norm with the weight, and the norm."""
    _float_weights(q_int8)
    norm = rms_norm(input, gamma, eps)
    return [_product(norm, weight, transposed_mode), norm]


def mlp_gemm(
    input: Tensor,
    residual: Tensor,
    input_bias: Tensor,
    weight_interm: Tensor,
    weight_out: Tensor,
    bias: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    pre_layer_norm: bool,
    mlp_after_attn: bool,
    q_scale: Tensor,
    q_scale1: Tensor,
    q_int8: bool,
    activation_type: int,
    transposed_mode: bool,
) -> list[Tensor]:
    """Returns two products with an activation between them, of a layer norm; and the norm.

    With `mlp_after_attn` it is the norm of input + residual + input_bias, else of the residual alone: the MLP of GPT-J
    runs beside the attention, on what came into the layer.
    """
    _float_weights(q_int8)
    if activation_type not in ACTIVATIONS:
        raise ValueError(f"activation_type is {activation_type}, expected {GELU} (GELU) or {RELU} (ReLU)")
    if mlp_after_attn:
        norm = layer_norm_residual(input, input_bias, residual, gamma, beta, eps)
    else:
        norm = layer_norm(residual, gamma, beta, eps)
    inner = _bias_activation(ACTIVATIONS[activation_type], _product(norm, weight_interm, transposed_mode), bias)
    return [_product(inner, weight_out, transposed_mode), norm]


def rms_mlp_gemm(
    input: Tensor,
    residual: Tensor,
    weight_interm: Tensor,
    weight_out: Tensor,
    gamma: Tensor,
    eps: float,
    interm_scale: Tensor,
    out_scale: Tensor,
    q_int8: bool,
    activation_type: int,
    transposed_mode: bool,
) -> list[Tensor]:
    """Returns two products with an activation between them, of the RMS norm of input + residual; and that sum."""
    _float_weights(q_int8)
    if activation_type not in ACTIVATIONS and activation_type not in GATES:
        raise ValueError(f"activation_type is {activation_type}, expected {GELU} to {GATED_SILU} (ActivationFuncType)")
    norm, total = pre_rms_norm(input, residual, gamma, eps)
    inner = _product(norm, weight_interm, transposed_mode)
    no_bias = inner.new_zeros(inner.shape[-1])
    if activation_type in ACTIVATIONS:
        inner = _bias_activation(ACTIVATIONS[activation_type], inner, no_bias)
    else:
        inner = gated_activation(inner, no_bias, activation_type)
    return [_product(inner, weight_out, transposed_mode), total]


def fused_gemm_gelu(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor,
    weight_out: Tensor,
    weight_out_scale: Tensor,
    q_int8: bool,
    transposed_mode: bool,
) -> Tensor:
    """Returns gelu(input @ weight + bias) @ weight_out, with the form of GELU that uses tanh."""
    _float_weights(q_int8)
    inner = _bias_activation(ACTIVATIONS[GELU], _product(input, weight, transposed_mode), bias)
    return _product(inner, weight_out, transposed_mode)


def residual_add_bias(
    hidden_state: Tensor,
    residual: Tensor,
    attention_output: Tensor,
    attention_bias: Tensor,
    final_bias: Tensor,
    mp_size: int,
    mlp_after_attn: bool,
    add_bias: bool,
    preln: bool,
) -> Tensor:
    """Writes the sum of a layer's parts to `residual`, and returns it.

    Terms that each of `mp_size` processes adds are divided by their number. Without `mlp_after_attn`, which is GPT-J's
    form, the attention's bias is added if `add_bias`.
    """
    shared = residual.float() + final_bias.float()
    total = hidden_state.float()
    if mlp_after_attn and preln:
        total = total + (shared + attention_output.float() + attention_bias.float()) / mp_size
    elif mlp_after_attn:
        total = total + shared
    else:
        shared = shared + attention_bias.float() if add_bias else shared
        total = total + attention_output.float() + shared / mp_size
    return residual.copy_(total)


def einsum_sec_sm_ecm(Q: Tensor, W: Tensor) -> Tensor:
    """Returns the tokens of each expert: [experts, capacity, channels] of Q [tokens, experts, capacity] and W."""
    return torch.einsum("sec,sm->ecm", Q, W)


def _alibi_of(alibi: Tensor, batch: int, heads: int, head_offset: int, mp_size: int) -> Tensor:
    """Returns the rows of this process's heads, [batch, heads, ...], or [1, heads, ...] for all sequences."""
    every = heads * mp_size
    rows = alibi.reshape(batch, every, *alibi.shape[1:]) if len(alibi) == batch * every else alibi[None]
    if head_offset + heads > rows.shape[1]:
        raise ValueError(
            f"alibi has {rows.shape[1]} rows for a sequence, and head_offset is {head_offset}, expected a row for each "
            f"of the {heads} heads from there: give a row for each head of all mp_size ({mp_size}) processes"
        )
    return rows[:, head_offset : head_offset + heads].float()


def softmax(
    attn_scores: Tensor,
    attn_mask: Tensor | None,
    alibi: Tensor | None,
    triangular: bool,
    recompute: bool,
    local_attention: bool,
    window_size: int,
    async_op: bool,
    layer_scale: float,
    head_offset: int,
    mp_size: int,
) -> Tensor:
    """Writes the softmax of scores [batch, heads, queries, keys] to them, and returns it.

    Scores are scaled; `alibi` and the mask are added unless they have one dimension, which stands for none. `alibi` has
    a row for each head of all `mp_size` processes, of which those from `head_offset` are this one's; or such rows for
    each sequence of the batch. With `triangular` the last query sees all keys and each one before it sees one less;
    with `local_attention` it sees the last `window_size` of them. A query all of whose scores are -inf gets 0.
    `recompute` and `async_op` are not used.
    """
    scores = attn_scores.float() * layer_scale
    queries, keys = scores.shape[-2:]
    if alibi is not None and alibi.dim() > 1:
        scores = scores + _alibi_of(alibi, scores.shape[0], scores.shape[1], head_offset, mp_size)
    if attn_mask is not None and attn_mask.dim() > 1:
        scores = scores + (attn_mask[:, None, None] if attn_mask.dim() == 2 else attn_mask).float()
    positions = torch.arange(keys, device=scores.device)
    distance = torch.arange(keys - queries, keys, device=scores.device)[:, None] - positions
    if triangular:
        scores = scores.masked_fill(distance < 0, -torch.inf)
    if local_attention:
        scores = scores.masked_fill(distance >= window_size, -torch.inf)
    unseen = (scores == -torch.inf).all(-1, keepdim=True)
    return attn_scores.copy_(scores.softmax(-1).masked_fill(unseen, 0.0))


PLAIN: dict[str, Callable[..., Any]] = {
    "_layer_norm_residual": layer_norm_residual,
    "_vector_add": vector_add,
    **{
        function.__name__: function
        for function in (
            gated_activation,
            layer_norm,
            layer_norm_residual_store_pre_ln_res,
            moe_res_matmul,
            pre_rms_norm,
            rms_norm,
        )
    },
}
"""Functions for tensors of each dtype."""
OF_A_DTYPE: dict[str, Callable[..., Any]] = {
    "bias_add": partial(_bias_activation, 6),
    "bias_gelu": partial(_bias_activation, 0),
    "bias_relu": partial(_bias_activation, 1),
    **{
        function.__name__: function
        for function in (
            einsum_sec_sm_ecm,
            fused_gemm_gelu,
            mlp_gemm,
            qkv_gemm,
            residual_add_bias,
            rms_mlp_gemm,
            rms_qkv_gemm,
            softmax,
            vector_matmul,
        )
    },
}
"""Functions that have the dtype of their first tensor at the end of their names."""


def _checked(
    name: str, dtype: torch.dtype, function: Callable[..., Any], first: Tensor, *rest: Any, **named: Any
) -> Any:
    if first.dtype != dtype:
        raise ValueError(f"{name} got {first.dtype}, expected {dtype}: call the function of that dtype")
    return function(first, *rest, **named)


def functions(op: Any) -> dict[str, Any]:
    """Returns DeepSpeed's functions by name. They load what they call on their first call."""
    return PLAIN | {
        f"{name}_{suffix}": partial(_checked, f"{name}_{suffix}", dtype, function)
        for name, function in OF_A_DTYPE.items()
        for suffix, dtype in DTYPES.items()
    }
