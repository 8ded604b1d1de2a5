"""The core ops of DeepSpeed's second inference engine on a GPU, with its names and arguments.

A call writes its first arguments and returns nothing. Arithmetic is in float32; all tensors of a call are contiguous,
and of one dtype: float32, bfloat16 or float16. Functions raise ValueError, TypeError, KernelLaunchError.
"""

from __future__ import annotations

from torch import Tensor

from opforge.builders.triton import transformer as builders
from opforge.builders.triton_op_builder.rows import HEAVY
from opforge.ops import inference_core
from opforge.ops.triton import registry

from .checks import check_like, form

OP = builders.InferenceCoreBuilder.name
ACTIVATIONS = {0: "GELU", 1: "ReLU", 2: "SiLU", 6: "identity"}
GATED = {3: "GEGLU", 4: "ReGLU", 5: "SiGLU"}
"""DeepSpeed's numbers of activations."""


def layer_norm(output: Tensor, input: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> None:
    """Writes the layer norm of `input`."""
    _norm("layer_norm", "input", {"output": output, "input": input}, {"gamma": gamma, "beta": beta}, epsilon)


def pre_layer_norm(
    res_output: Tensor,
    norm_output: Tensor,
    input: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
) -> None:
    """Writes input + residual, and its layer norm."""
    rows = {"norm_output": norm_output, "res_output": res_output, "input": input, "residual": residual}
    _norm("pre_layer_norm", "input", rows, {"gamma": gamma, "beta": beta}, epsilon)


def post_layer_norm(
    output: Tensor, input: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> None:
    """Writes the layer norm of input + residual."""
    rows = {"output": output, "input": input, "residual": residual}
    _norm("post_layer_norm", "input", rows, {"gamma": gamma, "beta": beta}, epsilon)


def rms_norm(norm_output: Tensor, norm_input: Tensor, gamma: Tensor, epsilon: float) -> None:
    """Writes the RMS norm of `norm_input`."""
    rows = {"norm_output": norm_output, "norm_input": norm_input}
    _norm("rms_norm", "norm_input", rows, {"gamma": gamma}, epsilon)


def rms_pre_norm(
    norm_output: Tensor,
    residual_output: Tensor,
    norm_input: Tensor,
    residual_input: Tensor,
    gamma: Tensor,
    epsilon: float,
) -> None:
    """Writes norm_input + residual_input, and its RMS norm."""
    rows = {"norm_output": norm_output, "residual_output": residual_output}
    rows |= {"norm_input": norm_input, "residual_input": residual_input}
    _norm("rms_pre_norm", "norm_input", rows, {"gamma": gamma}, epsilon)


def bias_activation(activation: Tensor, bias: Tensor | None, act_type: int) -> None:
    """Computes f(activation + bias) in place. `act_type` is 0 (GELU with tanh), 1 (ReLU), 2 (SiLU) or 6 (none)."""
    _check_kind("act_type", act_type, ACTIVATIONS)
    dtype = check_like(OP, "activation", {"activation": activation}, {} if bias is None else {"bias": bias})
    _activate("bias_activation", dtype, [activation], bias, activation.numel(), activation.shape[-1], act_type)


def gated_activation(output: Tensor, input: Tensor, bias: Tensor | None, activation_type: int) -> None:
    """Writes f(gates) * values, which alternate in `input`. 3: GEGLU with tanh, 4: ReGLU, 5: SiGLU."""
    _check_kind("activation_type", activation_type, GATED)
    dtype = check_like(OP, "input", {"input": input}, {} if bias is None else {"bias": bias})
    columns = input.shape[-1]
    if columns % 2 or output.shape != (*input.shape[:-1], columns // 2):
        expected = "one shape, with half as many channels in output: each has a gate and a value in input"
        raise ValueError(
            f"{OP}: output has shape {tuple(output.shape)} and input {tuple(input.shape)}, expected {expected}"
        )
    half = input.view(-1)[: output.numel()].view(output.shape)
    check_like(OP, "input", {"input": half, "output": output}, {})
    _activate("gated_activation", dtype, [output, input], bias, output.numel(), columns, activation_type)


def _check_kind(name: str, number: int, offered: dict[int, str]) -> None:
    if number not in offered:
        expected = ", ".join(f"{known} ({text})" for known, text in offered.items())
        raise ValueError(f"{OP}: {name} is {number}, expected one of {expected}")


def _activate(
    function: str, dtype: str, tensors: list[Tensor], bias: Tensor | None, count: int, columns: int, kind: int
) -> None:
    if not count:
        return
    tensors = tensors if bias is None else [*tensors, bias]
    name = f"{function}_{'plain' if bias is None else 'biased'}_{dtype}_{form(columns, tensors)}"
    registry.kernels_of(builders.InferenceCoreBuilder).launch(
        name, (-(-count // builders.BLOCK), 1, 1), *tensors, count, columns, kind
    )


def _norm(name: str, first: str, rows: dict[str, Tensor], columns: dict[str, Tensor], eps: float) -> None:
    """Launches a norm. `rows` are its outputs and inputs in the kernel's order."""
    dtype = check_like(OP, first, rows, columns)
    like = rows[first]
    if like.numel():
        width = like.shape[-1]
        size = registry.row_size(HEAVY, width, [(tensor, width) for tensor in rows.values()], list(columns.values()))
        kernels = registry.kernels_of(builders.InferenceCoreBuilder)
        grid = (like.numel() // width, 1, 1)
        kernels.launch(f"{name}_{dtype}_{size.name}", grid, *rows.values(), *columns.values(), like.shape[-1], eps)


KERNELS = (layer_norm, pre_layer_norm, post_layer_norm, rms_norm, rms_pre_norm, bias_activation, gated_activation)
bind = registry.binding({function.__name__: function for function in KERNELS} | inference_core.functions(None))
