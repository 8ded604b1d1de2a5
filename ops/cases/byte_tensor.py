"""Cases of the views of bytes: the cost of a view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import TIME, Call, Case, Place, Prepared
from opforge.ops.cases.rivals import DEEPSPEED, deepspeed

if TYPE_CHECKING:
    from torch import Tensor

BARE = "torch view, unchecked"


def _tensors(place: Place) -> list[Tensor]:
    return [torch.ones(64, dtype=place.torch_dtype()) for _ in range(place.size)]


def _ours(inputs: Prepared) -> Call:
    cast, tensors = inputs.loaded.cast_to_byte_tensor, inputs.arguments
    return lambda: cast(tensors)


def _deepspeed(inputs: Prepared) -> Call:
    tensors = inputs.arguments
    builders = deepspeed(inputs.place, "deepspeed.ops.op_builder", "UtilsBuilder")
    cast = builders.UtilsBuilder().load().cast_to_byte_tensor
    return lambda: cast(tensors)


def _view(inputs: Prepared) -> Call:
    tensors, dtype = inputs.arguments, torch.uint8
    return lambda: [tensor.view(dtype) for tensor in tensors]


def _are_views(loaded: Any, _device: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.zeros(6, 4, dtype=dtype)
        view = loaded.cast_to_byte_tensor(tensor)
        assert view.dtype == torch.uint8 and view.numel() == tensor.nbytes, f"{view.dtype}, {view.numel()} bytes"
        assert view.data_ptr() == tensor.data_ptr(), "the bytes are a copy"


UTILS = (
    Case(
        "cast_to_byte_tensor",
        _tensors,
        checks={"bytes are a view of the tensor": _are_views},
        sizes=(1, 10, 100),
        ours=_ours,
        rivals={DEEPSPEED: _deepspeed, BARE: _view},
        baseline=(BARE,),
        amount=lambda size, itemsize: size,
        unit=TIME,
        size_unit="tensors",
        quick=(10,),
    ),
)
