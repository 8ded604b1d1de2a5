"""Cases of the group quantizer: to codes of 8 and 4 bits and back, beside a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.ops.cases.form import OURS, Call, Case, MissingError, Place
from opforge.ops.cases.memory import COPY, copy_of
from opforge.ops.cases.rivals import COMPILED, DEEPSPEED, compiled

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 512
WAYS = 8
"""Tensors that are added up."""
SIZES = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
OPERATORS = "torch operators"


class Inputs(NamedTuple):
    """Values, their codes and params, with the op."""

    place: Place
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
    return Inputs(place, op, bits, values, codes, params)


def _quantize(inputs: Inputs) -> Call:
    op, codes, params, values = inputs.op, inputs.codes, inputs.params, inputs.values
    return lambda: op.quantize_(codes, params, values, inputs.groups, inputs.bits, True)


def _dequantize(inputs: Inputs) -> Call:
    import torch

    op, out = inputs.op, torch.empty_like(inputs.values)
    return lambda: op.dequantize_(out, inputs.codes, inputs.params, inputs.groups, inputs.bits, True)


def _levels(bits: int) -> int:
    return 1 << (bits - 1)


def _split(codes: Tensor, bits: int) -> Tensor:
    """Returns codes of 8 bits in rows of a group."""
    import torch

    if bits == 8:
        return codes.view(-1, GROUP)
    pairs = codes.view(-1, GROUP // 2)
    return torch.stack((pairs >> 4, pairs << 4 >> 4), -1).view(-1, GROUP)


def _to_codes(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Returns the codes of rows of a group, and their scales."""
    import torch

    scales = values.abs().amax(1, keepdim=True).float() / (_levels(bits) - 1)
    codes = (values / scales).round_().to(torch.int8)
    return (codes if bits == 8 else codes[:, 0::2] << 4 | codes[:, 1::2] & 15), scales


def _operators(back: bool, compiles: bool, inputs: Inputs) -> Call:
    """Returns the same rule by torch's operators: one pass over the memory for each, or compiled."""
    bits, dtype, params = inputs.bits, inputs.values.dtype, inputs.params
    values, codes = inputs.values.view(-1, GROUP), inputs.codes

    def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
        return _to_codes(values, bits)

    def dequantize(codes: Tensor, params: Tensor) -> Tensor:
        return (_split(codes, bits).float() * params).to(dtype)

    call: Any = dequantize if back else quantize
    if compiles:
        call = compiled(inputs.place, call)
    return (lambda: call(codes, params)) if back else (lambda: call(values))


class Sums(NamedTuple):
    """Codes of WAYS tensors, with the op."""

    place: Place
    op: Any
    bits: int
    codes: Tensor
    params: Tensor


def sums_amount(bits: int, size: int, itemsize: int) -> float:
    """Returns the bytes of the codes and scales of WAYS tensors and of their sum."""
    return (WAYS + 1) * (size * bits / 8 + 4 * (size / GROUP))


def _sums(bits: int, place: Place) -> Sums:
    import torch

    inputs = _inputs(bits, place)
    count = place.size * bits // 8
    codes = torch.randint(-128, 128, (WAYS * count,), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    params = torch.rand(WAYS * (place.size // GROUP), generator=torch.Generator().manual_seed(1))
    return Sums(place, inputs.op, bits, codes.to(place.device), params.to(place.device))


def _reduce(inputs: Sums) -> Call:
    import torch

    groups = inputs.params.numel() // WAYS
    out, params = (
        torch.empty_like(inputs.codes[: inputs.codes.numel() // WAYS]),
        torch.empty_like(inputs.params[:groups]),
    )
    arguments = (inputs.codes, inputs.params, WAYS * groups, groups, inputs.bits, True, WAYS)
    return lambda: inputs.op.quantized_reduction_(out, params, *arguments)


def _reduce_operators(compiles: bool, inputs: Sums) -> Call:
    bits = inputs.bits

    def reduce(codes: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
        values = _split(codes, bits).float() * params[:, None]
        return _to_codes(values.view(WAYS, -1, GROUP).sum(0), bits)

    call = compiled(inputs.place, reduce) if compiles else reduce
    return lambda: call(inputs.codes, inputs.params)


def _deepspeed(inputs: Any) -> Call:
    raise MissingError("its quantizer needs a GPU, and is not measured there yet")


def _case(name: str, bits: int, ours: Callable[[Inputs], Call]) -> Case:
    return Case(
        f"{name}, {bits} bits",
        SIZES,
        partial(_inputs, bits),
        {
            OURS: ours,
            OPERATORS: partial(_operators, name == "dequantize", False),
            COMPILED: partial(_operators, name == "dequantize", True),
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
        goals={COMPILED: 1.2} if bits == 4 else {},
        devices=("cpu", "cuda"),
    )


def _sum_case(bits: int) -> Case:
    def copy(inputs: Sums) -> Call:
        return copy_of(sums_amount(bits, inputs.place.size, 0), inputs.place.device)

    return Case(
        f"sum of {WAYS} tensors, {bits} bits",
        (1 << 18, 1 << 20),
        partial(_sums, bits),
        {
            OURS: _reduce,
            OPERATORS: partial(_reduce_operators, False),
            COMPILED: partial(_reduce_operators, True),
            DEEPSPEED: _deepspeed,
            COPY: copy,
        },
        (COPY,),
        partial(sums_amount, bits),
        size_unit="values",
        quick=(1 << 18,),
        goals={COMPILED: 1.0},
        devices=("cpu", "cuda"),
    )


QUANTIZER = (
    *(
        _case(name, bits, ours)
        for bits in (8, 4)
        for name, ours in (("quantize", _quantize), ("dequantize", _dequantize))
    ),
    _sum_case(8),
    _sum_case(4),
)
