"""Cases of the core ops of inference: rows of 4096 channels, beside torch's operators and a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.ops.cases.form import OURS, Call, Case, MissingError, Place
from opforge.ops.cases.memory import COPY, copy_of
from opforge.ops.cases.rivals import DEEPSPEED, TORCH
from opforge.ops.cases.traffic import TRAFFIC

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS, EPS = 4096, 1e-5
ROWS = (16, 256, 4096)
GOAL = 0.8  # for what no cache holds


class Inputs(NamedTuple):
    """Rows, a row, and memory for results."""

    op: Any
    rows: Tensor
    residual: Tensor
    row: Tensor
    outs: tuple[Tensor, Tensor]
    half: Tensor
    amount: float


def amount(function: str, size: int, itemsize: int) -> float:
    """Returns the bytes that a function must move for `size` rows."""
    return TRAFFIC[function].amount(size * CHANNELS, itemsize)


def _setup(function: str, place: Place) -> Inputs:
    import torch

    from opforge.builders.cpu.transformer.inference_core import InferenceCoreBuilder

    op: Any = InferenceCoreBuilder().load()
    random = torch.Generator().manual_seed(0)
    sizes = ((place.size, CHANNELS), (place.size, CHANNELS), (CHANNELS,))
    rows, residual, row = (torch.randn(shape, generator=random).to(place.torch_dtype()) for shape in sizes)
    outs, half = (torch.empty_like(rows), torch.empty_like(rows)), torch.empty_like(rows[:, ::2].contiguous())
    return Inputs(op, rows, residual, row, outs, half, amount(function, place.size, rows.itemsize))


def _rms(inputs: Inputs) -> Call:
    return lambda: inputs.op.rms_norm(inputs.outs[0], inputs.rows, inputs.row, EPS)


def _torch_rms(inputs: Inputs) -> Call:
    from torch.nn import functional

    return lambda: functional.rms_norm(inputs.rows, (CHANNELS,), inputs.row, EPS)


def _pre_norm(inputs: Inputs) -> Call:
    op, rows, residual, row, outs, _, _ = inputs
    return lambda: op.pre_layer_norm(*outs, rows, residual, row, row, EPS)


def _torch_pre_norm(inputs: Inputs) -> Call:
    from torch.nn import functional

    return lambda: functional.layer_norm(inputs.rows + inputs.residual, (CHANNELS,), inputs.row, inputs.row, EPS)


def _gelu(inputs: Inputs) -> Call:
    return lambda: inputs.op.bias_activation(inputs.rows, inputs.row, 0)


def _torch_gelu(inputs: Inputs) -> Call:
    from torch.nn import functional

    return lambda: functional.gelu(inputs.rows + inputs.row, approximate="tanh")


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
        partial(_setup, function),
        {OURS: ours, TORCH: torchs, DEEPSPEED: _deepspeed, COPY: lambda inputs: copy_of(inputs.amount)},
        (COPY,),
        partial(amount, function),
        size_unit="rows",
        dtypes=("float32", "bfloat16"),
        goals={"reference": {ROWS[-1]: goal}} if goal else {},
    )


INFERENCE_CORE = (
    _case("RMS norm", "rms_norm", _rms, _torch_rms),
    _case("layer norm of a sum", "pre_layer_norm", _pre_norm, _torch_pre_norm),
    _case("bias and GELU", "bias_activation", _gelu, _torch_gelu, 0.0),
    _case("bias and SwiGLU", "gated_activation", _gated, _torch_gated, 0.0),
)
