"""Cases of the group quantizer: to codes of 8 and 4 bits and back, beside a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.ops.cases.form import OURS, Call, Case, MissingError, Place
from opforge.ops.cases.memory import COPY, copy_of
from opforge.ops.cases.rivals import DEEPSPEED

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 512
SIZES = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
OPERATORS = "torch operators"


class Inputs(NamedTuple):
    """Values, their codes and params, with the op."""

    op: Any
    bits: int
    values: Tensor
    codes: Tensor
    params: Tensor

    @property
    def groups(self) -> int:
        """The number of groups."""
        return self.values.numel() // GROUP


def amount(bits: int, size: int, itemsize: int) -> int:
    """Returns the bytes of values, codes and scales."""
    return size * itemsize + size * bits // 8 + 4 * (size // GROUP)


def _inputs(bits: int, place: Place) -> Inputs:
    import torch

    from opforge.accelerator.registry import accelerator_named

    op: Any = accelerator_named(place.device).create_op_builder("QuantizerBuilder")
    op = op.load()
    random = torch.Generator(place.device).manual_seed(0)
    values = torch.empty(place.size, device=place.device).normal_(generator=random).to(place.torch_dtype())
    codes, params = op.quantize(values, place.size // GROUP, bits, op.Symmetric)
    return Inputs(op, bits, values, codes, params)


def _quantize(inputs: Inputs) -> Call:
    op, codes, params, values = inputs.op, inputs.codes, inputs.params, inputs.values
    return lambda: op.quantize_(codes, params, values, inputs.groups, inputs.bits, True)


def _dequantize(inputs: Inputs) -> Call:
    import torch

    op, out = inputs.op, torch.empty_like(inputs.values)
    return lambda: op.dequantize_(out, inputs.codes, inputs.params, inputs.groups, inputs.bits, True)


def _operators(back: bool, inputs: Inputs) -> Call:
    """Returns the same rule by torch's operators, one pass over the memory for each."""
    import torch

    if inputs.bits != 8:
        raise MissingError("torch has no integers of 4 bits")
    values, codes = inputs.values.view(-1, GROUP), inputs.codes.view(-1, GROUP)

    def quantize() -> Tensor:
        scales = values.abs().amax(1, keepdim=True).float() / 127
        return (values / scales).round_().to(torch.int8)

    return (lambda: codes.to(values.dtype) * inputs.params.to(values.dtype)) if back else quantize


def _deepspeed(inputs: Inputs) -> Call:
    raise MissingError("its quantizer needs a GPU, and is not measured there yet")


def _case(name: str, bits: int, ours: Callable[[Inputs], Call]) -> Case:
    return Case(
        f"{name}, {bits} bits",
        SIZES,
        partial(_inputs, bits),
        {
            OURS: ours,
            OPERATORS: partial(_operators, name == "dequantize"),
            DEEPSPEED: _deepspeed,
            COPY: lambda inputs: copy_of(
                amount(bits, inputs.values.numel(), inputs.values.itemsize), inputs.values.device.type
            ),
        },
        (COPY,),
        partial(amount, bits),
        size_unit="values",
        dtypes=("float32", "bfloat16"),
        quick=(1 << 22,),
        devices=("cpu", "cuda"),
    )


QUANTIZER = tuple(
    _case(name, bits, ours) for bits in (8, 4) for name, ours in (("quantize", _quantize), ("dequantize", _dequantize))
)
