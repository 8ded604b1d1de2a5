"""Cases of the core ops of inference: rows of 4096 channels, beside torch's operators and a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.ops.cases.form import OURS, TIME, Call, Case, MissingError, Place
from opforge.ops.cases.memory import COPY, copy_of
from opforge.ops.cases.rivals import COMPILED, DEEPSPEED, TORCH, compiled
from opforge.ops.cases.traffic import TRAFFIC

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS, ODD, EPS = 4096, 4095, 1e-5
ROWS = (16, 256, 4096)
PRODUCTS = 64
"""Channels of a product, at most the rows."""
GOAL = 0.8  # for what no cache holds


class Inputs(NamedTuple):
    """Rows, a row, and memory for results."""

    place: Place
    op: Any
    rows: Tensor
    residual: Tensor
    row: Tensor
    outs: tuple[Tensor, Tensor]
    half: Tensor
    amount: float


def amount(function: str, channels: int, size: int, itemsize: int) -> float:
    """Returns the bytes that a function must move for `size` rows."""
    return TRAFFIC[function].amount(size * channels, itemsize)


def _setup(function: str, channels: int, place: Place) -> Inputs:
    import torch

    from opforge.builders.cpu.transformer.inference_core import InferenceCoreBuilder

    op: Any = InferenceCoreBuilder().load()
    random = torch.Generator().manual_seed(0)
    sizes = ((place.size, channels), (place.size, channels), (channels,))
    rows, residual, row = (torch.randn(shape, generator=random).to(place.torch_dtype()) for shape in sizes)
    outs, half = (
        (torch.empty_like(rows), torch.empty_like(rows)),
        torch.empty_like(rows[:, : channels // 2].contiguous()),
    )
    moved = amount(function, channels, place.size, rows.itemsize)
    return Inputs(place, op, rows, residual, row, outs, half, moved)


def _rms(inputs: Inputs) -> Call:
    return lambda: inputs.op.rms_norm(inputs.outs[0], inputs.rows, inputs.row, EPS)


def _torch_rms(inputs: Inputs) -> Call:
    from torch.nn import functional

    return lambda: functional.rms_norm(inputs.rows, inputs.row.shape, inputs.row, EPS)


def _pre_norm(inputs: Inputs) -> Call:
    _, op, rows, residual, row, outs, _, _ = inputs
    return lambda: op.pre_layer_norm(*outs, rows, residual, row, row, EPS)


def _torch_pre_norm(inputs: Inputs) -> Call:
    from torch.nn import functional

    return lambda: functional.layer_norm(inputs.rows + inputs.residual, (CHANNELS,), inputs.row, inputs.row, EPS)


def _gelu(inputs: Inputs) -> Call:
    return lambda: inputs.op.bias_activation(inputs.rows, inputs.row, 0)


def _torch_gelu(inputs: Inputs) -> Call:
    from torch.nn import functional

    return lambda: functional.gelu(inputs.rows + inputs.row, approximate="tanh")


def _silu(inputs: Inputs) -> Call:
    return lambda: inputs.op.bias_activation(inputs.rows, inputs.row, 2)


def _torch_silu(inputs: Inputs) -> Call:
    from torch.nn import functional

    return lambda: inputs.rows.copy_(functional.silu(inputs.rows + inputs.row))


def _compiled_silu(inputs: Inputs) -> Call:
    from torch.nn import functional

    def silu(rows: Tensor, row: Tensor) -> Tensor:
        return rows.copy_(functional.silu(rows + row))

    call = compiled(inputs.place, silu)
    return lambda: call(inputs.rows, inputs.row)


def _compiled_rms(inputs: Inputs) -> Call:
    from torch.nn import functional

    def rms(out: Tensor, rows: Tensor, row: Tensor) -> Tensor:
        return out.copy_(functional.rms_norm(rows, row.shape, row, EPS))

    call = compiled(inputs.place, rms)
    return lambda: call(inputs.outs[0], inputs.rows, inputs.row)


def _gated(inputs: Inputs) -> Call:
    return lambda: inputs.op.gated_activation(inputs.half, inputs.rows, inputs.row, 5)


def _torch_gated(inputs: Inputs) -> Call:
    from torch.nn import functional

    def gated() -> Tensor:
        total = inputs.rows + inputs.row
        return functional.silu(total[..., ::2]) * total[..., 1::2]

    return gated


def _deepspeed(inputs: Inputs) -> Call:
    raise MissingError("its inference ops need a GPU")


def _case(
    name: str, function: str, ours: Callable[[Inputs], Call], torchs: Callable[[Inputs], Call], goal: float = GOAL
) -> Case:
    return Case(
        name,
        ROWS,
        partial(_setup, function, CHANNELS),
        {OURS: ours, TORCH: torchs, DEEPSPEED: _deepspeed, COPY: lambda inputs: copy_of(inputs.amount)},
        (COPY,),
        partial(amount, function, CHANNELS),
        size_unit="rows",
        dtypes=("float32", "bfloat16"),
        goals={"reference": {ROWS[-1]: goal}} if goal else {},
    )


def _odd_case(
    name: str,
    function: str,
    calls: tuple[Callable[[Inputs], Call], Callable[[Inputs], Call], Callable[[Inputs], Call]],
    goals: dict[str, float],
) -> Case:
    """Returns a case of rows that are no whole lines of the caches."""
    return Case(
        f"{name}, {ODD} channels",
        ROWS[1:],
        partial(_setup, function, ODD),
        {
            OURS: calls[0],
            TORCH: calls[1],
            COMPILED: calls[2],
            DEEPSPEED: _deepspeed,
            COPY: lambda inputs: copy_of(inputs.amount),
        },
        (COPY,),
        partial(amount, function, ODD),
        size_unit="rows",
        dtypes=("float32", "bfloat16"),
        quick=(),
        goals=goals,
    )


INFERENCE_CORE = (
    _case("RMS norm", "rms_norm", _rms, _torch_rms),
    _case("layer norm of a sum", "pre_layer_norm", _pre_norm, _torch_pre_norm),
    _case("bias and GELU", "bias_activation", _gelu, _torch_gelu, 0.0),
    _case("bias and SwiGLU", "gated_activation", _gated, _torch_gated, 0.0),
    _odd_case("bias and SiLU", "bias_activation", (_silu, _torch_silu, _compiled_silu), {COMPILED: 1.1}),
    _odd_case("RMS norm", "rms_norm", (_rms, _torch_rms, _compiled_rms), {}),
)


def _products(inputs: Inputs) -> Call:
    import torch

    from opforge.builders.cpu.transformer.inference_core import InferenceBuilder

    op: Any = InferenceBuilder().load()
    suffix = {torch.float32: "fp32", torch.bfloat16: "bf16"}[inputs.rows.dtype]
    function, none = getattr(op, f"rms_qkv_gemm_{suffix}"), torch.empty(1)
    weight = inputs.residual[:PRODUCTS]
    return lambda: function(inputs.rows, weight, none, inputs.row, EPS, False, True)


def _torch_products(inputs: Inputs) -> Call:
    from torch.nn import functional

    weight = inputs.residual[:PRODUCTS].t()
    return lambda: functional.rms_norm(inputs.rows, inputs.row.shape, inputs.row, EPS) @ weight


INFERENCE = (
    Case(
        "product of an RMS norm",
        (64, 256),
        partial(_setup, "rms_norm", CHANNELS),
        {OURS: _products, TORCH: _torch_products, DEEPSPEED: _deepspeed},
        (TORCH,),
        lambda size, itemsize: size,
        TIME,
        "rows",
        dtypes=("float32", "bfloat16"),
        quick=(64,),
    ),
)
