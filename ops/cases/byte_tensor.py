"""Cases of the views of bytes: what a view costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.ops.cases.form import OURS, TIME, Call, Case, Place
from opforge.ops.cases.rivals import DEEPSPEED, deepspeed

if TYPE_CHECKING:
    from torch import Tensor

BARE = "torch view, unchecked"
Inputs = tuple[Place, "list[Tensor]"]


def _setup(place: Place) -> Inputs:
    import torch

    return place, [torch.ones(64, dtype=place.torch_dtype()) for _ in range(place.size)]


def _ours(inputs: Inputs) -> Call:
    from opforge.builders.cpu.byte_tensor import UtilsBuilder

    cast = UtilsBuilder().load().cast_to_byte_tensor
    return lambda: cast(inputs[1])


def _deepspeed(inputs: Inputs) -> Call:
    place, tensors = inputs
    builders = deepspeed(place, "deepspeed.ops.op_builder", "UtilsBuilder")
    cast = builders.UtilsBuilder().load().cast_to_byte_tensor
    return lambda: cast(tensors)


def _view(inputs: Inputs) -> Call:
    import torch

    tensors, dtype = inputs[1], torch.uint8
    return lambda: [tensor.view(dtype) for tensor in tensors]


UTILS = (
    Case(
        "cast_to_byte_tensor",
        (1, 10, 100),
        _setup,
        {OURS: _ours, DEEPSPEED: _deepspeed, BARE: _view},
        (BARE,),
        lambda size, itemsize: size,
        TIME,
        "tensors",
        quick=(10,),
    ),
)
