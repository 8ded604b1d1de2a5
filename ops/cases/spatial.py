"""Cases of the biases of channels: one image of 320 channels, beside torch's operators and a copy."""

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

CHANNELS = 320
GOAL = 0.8  # for what no cache holds


class Inputs(NamedTuple):
    """Images as rows of channels, and biases."""

    op: Any
    out: Tensor
    first: Tensor
    second: Tensor
    bias: Tensor
    amount: float


def amount(function: str, size: int, itemsize: int) -> float:
    """Returns the bytes that a function must move for images of `size` pixels."""
    return TRAFFIC[function].amount(size * CHANNELS, itemsize)


def _setup(function: str, place: Place) -> Inputs:
    import torch

    from opforge.builders.cpu.transformer.spatial_inference import SpatialInferenceBuilder

    op: Any = SpatialInferenceBuilder().load()
    random = torch.Generator().manual_seed(0)
    draw = [torch.randn(place.size, CHANNELS, generator=random).to(place.torch_dtype()) for _ in range(2)]
    bias = torch.randn(CHANNELS, generator=random).to(place.torch_dtype())
    return Inputs(op, torch.empty_like(draw[0]), draw[0], draw[1], bias, amount(function, place.size, bias.itemsize))


def _one(inputs: Inputs) -> Call:
    op, out, first, _, bias, _ = inputs
    return lambda: op.channel_bias_add_(out, first, bias)


def _two(inputs: Inputs) -> Call:
    op, out, first, second, bias, _ = inputs
    return lambda: op.channel_bias_add_(out, first, bias, second, bias)


def _torch_one(inputs: Inputs) -> Call:
    import torch

    return lambda: torch.add(inputs.first, inputs.bias, out=inputs.out)


def _torch_two(inputs: Inputs) -> Call:
    import torch

    return lambda: torch.add(inputs.first + inputs.bias, inputs.second + inputs.bias, out=inputs.out)


def _deepspeed(inputs: Inputs) -> Call:
    raise MissingError("its spatial inference needs a GPU")


def _case(name: str, function: str, ours: Callable[[Inputs], Call], torchs: Callable[[Inputs], Call]) -> Case:
    return Case(
        name,
        (256, 4096, 65536),
        partial(_setup, function),
        {OURS: ours, TORCH: torchs, DEEPSPEED: _deepspeed, COPY: lambda inputs: copy_of(inputs.amount)},
        (COPY,),
        partial(amount, function),
        size_unit="pixels",
        dtypes=("float32", "bfloat16"),
        goals={"reference": {65536: GOAL}},
    )


SPATIAL = (
    _case("bias", "nhwc_bias_add", _one, _torch_one),
    _case("bias, other image and its bias", "nhwc_bias_add_bias_add", _two, _torch_two),
)
