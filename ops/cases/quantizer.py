"""Cases of the group quantizer: to codes of 8 and 4 bits and back, beside a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.memory import COPY, copied
from opforge.ops.cases.rivals import COMPILED, DEEPSPEED, compiled

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 512
WAYS = 8
"""Tensors that are added up."""
SIZES = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
TUNED_SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
SHAPES = ((1, 2), (37, 8), (3, 30), (5, 512), (2, 4098))
"""Groups, and the values of each."""
FLOATS = ("float32", "bfloat16", "float16")
OPERATORS = "torch operators"
PROMISES = (Promise.REPEATS, Promise.THREADS, Promise.ALIGNMENT, Promise.BATCH)
"""A code of NaN, or of an infinite group, is no number that a reference could say."""


def amount(bits: int, size: int, itemsize: int) -> int:
    """Returns the bytes of values, codes and scales."""
    return size * itemsize + size * bits // 8 + 4 * (size // GROUP)


def _memory(bits: int, place: Place, symmetric: bool = True) -> tuple[Tensor, Tensor]:
    """Returns memory for the codes of groups, and for their scales; without `symmetric` for their offsets too."""
    groups, size = place.shape
    codes = torch.zeros(groups, size * bits // 8, dtype=torch.int8, device=place.device)
    return codes, torch.zeros(groups, 1 if symmetric else 2, device=place.device)


def _to_quantize(bits: int, place: Place, symmetric: bool = True) -> tuple[Any, ...]:
    return *_memory(bits, place, symmetric), place.draw(*place.shape), place.shape[0], bits, symmetric


def _codes(bits: int, place: Place, ways: int = 1, symmetric: bool = True) -> tuple[Tensor, Tensor]:
    """Returns codes of groups, any bytes, and scales; without `symmetric` offsets too."""
    codes, params = (torch.cat([tensor] * ways) for tensor in _memory(bits, place, symmetric))
    random = torch.Generator().manual_seed(0)
    drawn = torch.randint(-128, 128, codes.shape, generator=random).to(torch.int8)
    return drawn.to(place.device), torch.rand(params.shape, generator=random).to(place.device)


def _to_dequantize(bits: int, place: Place, symmetric: bool = True) -> tuple[Any, ...]:
    out = torch.zeros(place.shape, dtype=place.torch_dtype(), device=place.device)
    return out, *_codes(bits, place, symmetric=symmetric), place.shape[0], bits, symmetric


def _to_sum(bits: int, place: Place) -> tuple[Any, ...]:
    groups = place.shape[0]
    return *_memory(bits, place), *_codes(bits, place, WAYS), WAYS * groups, groups, bits, True, WAYS


def _split(codes: Tensor, bits: int) -> Tensor:
    """Returns codes of 8 bits in rows of a group."""
    return codes if bits == 8 else torch.stack((codes >> 4, codes << 4 >> 4), -1).flatten(-2)


def _rule(values: Tensor, bits: int, symmetric: bool = True) -> tuple[Tensor, Tensor]:
    """Returns the codes of groups, one in each byte, and their scales and offsets, by the rule."""
    from opforge.ops import reference

    codes, scales, offsets = reference.quantize(values, bits, symmetric)
    return codes.to(torch.int8), scales if symmetric else torch.cat((scales, offsets), 1)


def _quantized(_codes: Tensor, _params: Tensor, values: Tensor, _groups: int, bits: int, symmetric: bool) -> Any:
    return _rule(values, bits, symmetric)


def _dequantized(_out: Tensor, codes: Tensor, params: Tensor, _groups: int, bits: int, symmetric: bool) -> Tensor:
    values = _split(codes, bits).to(params.dtype) * params[:, :1]
    return values if symmetric else values + params[:, 1:]


def _summed(_out: Tensor, _params: Tensor, codes: Tensor, scales: Tensor, *numbers: Any) -> Any:
    _in_groups, groups, bits, _symmetric, ways = numbers
    values = _split(codes, bits).to(scales.dtype) * scales
    return _rule(values.view(ways, groups, -1).sum(0), bits)


def _with_split_codes(function: str, loaded: Any) -> Callable[..., Any]:
    """Returns a function of the op which writes codes of 4 bits, that returns them one in each byte, and the scales."""

    def call(codes: Tensor, params: Tensor, *rest: Any) -> Any:
        getattr(loaded, function)(codes, params, *rest)
        return _split(codes, 4), params

    return call


def _levels(bits: int) -> int:
    return 1 << (bits - 1)


def _to_codes(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Returns the codes of rows of a group, and their scales, as one writes them in torch."""
    scales = values.abs().amax(1, keepdim=True).float() / (_levels(bits) - 1)
    codes = (values / scales).round_().to(torch.int8)
    return (codes if bits == 8 else codes[:, 0::2] << 4 | codes[:, 1::2] & 15), scales


def _operators(function: Callable[..., Any], first: int, last: int, compiles: bool, inputs: Prepared) -> Call:
    """Returns a function of some arguments by torch's operators: one pass over the memory for each, or compiled."""
    call = compiled(inputs.place, function) if compiles else function
    return partial(call, *inputs.arguments[first:last])


def _torch_dequantize(bits: int, codes: Tensor, params: Tensor) -> Tensor:
    return _split(codes, bits).float() * params


def _torch_sum(bits: int, codes: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
    values = _split(codes, bits).float() * params
    return _to_codes(values.view(WAYS, -1, values.shape[1]).sum(0), bits)


def sums_amount(bits: int, size: int, itemsize: int) -> float:
    """Returns the bytes of the codes and scales of WAYS tensors and of their sum."""
    return (WAYS + 1) * (size * bits / 8 + 4 * (size / GROUP))


def _deepspeed(_inputs: Prepared) -> Call:
    raise MissingError("its quantizer needs a GPU, and is not measured there yet")


def _ours(function: str, inputs: Prepared) -> Call:
    return partial(getattr(inputs.loaded, function), *inputs.arguments)


def _compared(
    name: str, function: str, bits: int, inputs: Callable[..., Any], reference: Callable[..., Any], **others: Any
) -> Case:
    """Returns a case that is compared, and perhaps timed."""
    writes_codes = function != "dequantize_"
    return Case(
        name,
        partial(inputs, bits),
        partial(_with_split_codes, function) if writes_codes and bits == 4 else function,
        reference=reference,
        shapes=SHAPES,
        outputs=(0, 1) if writes_codes else (0,),
        strided=False,
        # Of a quotient that lies halfway between two codes, float32 may choose the other one.
        **({"integers": 1, "tolerance": 1e-6} if writes_codes else {"refused_dtypes": ()}),
        **others,
    )


def _case(
    name: str,
    function: str,
    bits: int,
    inputs: Callable[[int, Place], Any],
    reference: Callable[..., Any],
    operators: tuple[Callable[..., Any], int, int],
    **others: Any,
) -> Case:
    """Returns a case. `operators` is a function for the rivals, with the first and last argument that it gets."""
    return _compared(
        f"{name}, {bits} bits",
        function,
        bits,
        inputs,
        reference,
        shape=lambda size: (size // GROUP, GROUP),
        ours=partial(_ours, function),
        rivals={
            OPERATORS: partial(_operators, *operators, False),
            COMPILED: partial(_operators, *operators, True),
            DEEPSPEED: _deepspeed,
            COPY: copied,
        },
        baseline=(COPY,),
        size_unit="values",
        devices=("cpu", "cuda"),
        **others,
    )


def _both_ways(bits: int) -> tuple[Case, ...]:
    compared: dict[str, Any] = {"dtypes": FLOATS, "promises": PROMISES, "batch": {0: 0, 1: 0, 2: 0, 3: None}}
    timed: dict[str, Any] = {
        "timed_dtypes": ("float32", "bfloat16"),
        "sizes": SIZES,
        "amount": partial(amount, bits),
        "quick": (1 << 22,),
        "goals": {COMPILED: 1.2} if bits == 4 else {},
        "tuned": {"float32": TUNED_SIZES, "bfloat16": TUNED_SIZES} if bits == 8 else {},
    }
    to_codes = partial(_to_codes, bits=bits), 2, 3
    back = partial(_torch_dequantize, bits), 1, 3
    accurate: dict[str, Any] = {**compared, **timed, "promises": (*PROMISES, Promise.ACCURACY), "tuned": {}}
    with_offsets = f"{bits} bits, with offsets"
    to_quantize, to_dequantize = (partial(make, symmetric=False) for make in (_to_quantize, _to_dequantize))
    return (
        _case("quantize", "quantize_", bits, _to_quantize, _quantized, to_codes, **compared, **timed),
        _case("dequantize", "dequantize_", bits, _to_dequantize, _dequantized, back, **accurate),
        _compared(f"quantize, {with_offsets}", "quantize_", bits, to_quantize, _quantized, **compared),
        _compared(f"dequantize, {with_offsets}", "dequantize_", bits, to_dequantize, _dequantized, **compared),
    )


def _sum_case(bits: int) -> Case:
    return _case(
        f"sum of {WAYS} tensors",
        "quantized_reduction_",
        bits,
        _to_sum,
        _summed,
        (partial(_torch_sum, bits), 2, 4),
        sizes=(1 << 18, 1 << 20),
        amount=partial(sums_amount, bits),
        quick=(1 << 18,),
        goals={COMPILED: 1.0},
        refused_dtypes=(),
        promises=(Promise.REPEATS, Promise.THREADS, Promise.ALIGNMENT),
    )


QUANTIZER = (*_both_ways(8), *_both_ways(4), _sum_case(8), _sum_case(4))
