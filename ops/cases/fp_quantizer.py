"""Cases of the floating-point quantizer: each format, to codes and back, beside a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.memory import COPY, copied
from opforge.ops.cases.rivals import DEEPSPEED
from opforge.ops.cases.traffic import SCALE, quantized

if TYPE_CHECKING:
    from torch import Tensor

GROUP, BLOCKS, EVERY = 512, 64, 4
"""Values of a group; blocks of a tensor, of which selective dequantization reads one in EVERY."""
FORMATS = {"12 bits": (12, 7), "8 bits": (8, 3), "8 bits, mantissa 2": (8, 2), "6 bits": (6, 2), "4 bits": (4, 1)}
"""Name -> bits of a code, bits of its mantissa."""
SIZES = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
TUNED_SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
GOAL = 0.8
FLOAT8 = "torch float8, no scales"


def amount(bits: int, share: int, size: int, itemsize: int) -> float:
    """Returns the bytes of values, codes and scales: of 1 in `share`."""
    return quantized(size // share, itemsize, bits, GROUP)


def _values(place: Place) -> tuple[Any, ...]:
    """Returns groups of values."""
    return (place.draw(*place.shape),)


def _there_and_back(bits: int, mantissa: int, loaded: Any) -> Callable[[Tensor], Tensor]:
    """Returns a function that quantizes groups, and returns what comes back: the rows of bytes say nothing alone."""

    def call(values: Tensor) -> Tensor:
        size = values.shape[-1]
        rows = torch.empty(values.numel() // size, size * bits // 8 + SCALE, dtype=torch.uint8, device=values.device)
        back = torch.empty(values.shape, dtype=values.dtype, device=values.device)
        loaded.fp_quantize_(rows, values, size, bits, mantissa, False, 1)
        loaded.fp_dequantize_(back, rows, size, bits, mantissa)
        return back

    return call


def _allowed(bits: int, mantissa: int, values: Tensor) -> Tensor:
    """Returns half a unit of the format at each value.

    Below the smallest normal number of the format the distance between numbers is the same everywhere.
    """
    smallest = values.abs().amax(-1, keepdim=True) * 2.0 ** (2 - 2 ** (bits - 1 - mantissa))
    return torch.maximum(values.abs(), smallest) * 2.0 ** -(mantissa + 1) * 1.02


Ours = Callable[[Prepared, "Tensor", "Tensor", tuple[int, ...]], Call]
"""Gets the values, their rows, and the arguments that name the format."""


def _ours(bits: int, mantissa: int, ours: Ours, inputs: Prepared) -> Call:
    from opforge.ops.fp_quantizer import FPQuantizer

    (values,) = inputs.arguments
    rows = FPQuantizer(GROUP, bits, mantissa).quantize(values)
    return ours(inputs, values, rows, (GROUP, bits, mantissa))


def _quantize(stochastic: bool, inputs: Prepared, values: Tensor, rows: Tensor, form: tuple[int, ...]) -> Call:
    return lambda: inputs.loaded.fp_quantize_(rows, values, *form, stochastic, 1)


def _dequantize(inputs: Prepared, values: Tensor, rows: Tensor, form: tuple[int, ...]) -> Call:
    out = torch.empty_like(values)
    return lambda: inputs.loaded.fp_dequantize_(out, rows, *form)


def _selective(inputs: Prepared, values: Tensor, rows: Tensor, form: tuple[int, ...]) -> Call:
    indexes = torch.arange(0, BLOCKS, EVERY, dtype=torch.int32)
    out = torch.empty(len(indexes), values.numel() // BLOCKS, dtype=values.dtype)
    return lambda: inputs.loaded.fp_selective_dequantize_(out, rows, indexes, *form)


def _float8(form: tuple[int, int], back: bool, inputs: Prepared) -> Call:
    """Returns torch's cast to and from the nearest dtype that it has. It computes no scales."""
    dtypes = {(8, 3): torch.float8_e4m3fn, (8, 2): torch.float8_e5m2}
    if form not in dtypes:
        raise MissingError(f"torch has no cast to floating-point codes of {form[0]} bits")
    (values,) = inputs.arguments
    codes, out = values.to(dtypes[form]), torch.empty_like(values)
    return (lambda: out.copy_(codes)) if back else (lambda: codes.copy_(values))


def _deepspeed(_inputs: Prepared) -> Call:
    raise MissingError("its floating-point quantizer needs a GPU")


def _case(name: str, form: str, ours: Ours, share: int = 1, goal: bool = True, **compared: Any) -> Case:
    bits, mantissa = FORMATS[form]
    rivals: dict[str, Callable[[Prepared], Call]] = {DEEPSPEED: _deepspeed}
    if share == 1:
        rivals[FLOAT8] = partial(_float8, (bits, mantissa), name == "dequantize")
    rivals[COPY] = copied
    is_quick = form in ("8 bits", "4 bits") and goal
    return Case(
        f"{name}, {form}",
        _values,
        sizes=SIZES,
        shape=lambda size: (size // GROUP, GROUP),
        ours=partial(_ours, bits, mantissa, ours),
        rivals=rivals,
        baseline=(COPY,),
        amount=partial(amount, bits, share),
        size_unit="values",
        dtypes=("float32", "bfloat16", "float16") if compared else ("float32", "bfloat16"),
        timed_dtypes=("float32", "bfloat16"),
        quick=(1 << 22,) if is_quick else (),
        goals={"baseline": GOAL} if goal else {},
        **compared,
    )


def _compared(form: str) -> dict[str, Any]:
    """Returns how a format is compared: by what comes back."""
    bits, mantissa = FORMATS[form]
    return {
        "function": partial(_there_and_back, bits, mantissa),
        "reference": lambda values: values,
        "shapes": ((1, 4), (3, 64), (5, 512), (2, 1028)),
        "tolerance": partial(_allowed, bits, mantissa),
        "strided": False,
        "promises": (Promise.REPEATS, Promise.THREADS, Promise.ALIGNMENT, Promise.BATCH, Promise.ZEROS),
        "batch": {0: 0},
        "tuned": {"float32": TUNED_SIZES, "bfloat16": TUNED_SIZES} if form == "8 bits" else {},
    }


FP_QUANTIZER = tuple(
    case
    for form in FORMATS
    for case in (
        _case("quantize", form, partial(_quantize, False), **_compared(form)),
        _case("dequantize", form, _dequantize),
        _case(f"dequantize 1 of {EVERY} blocks", form, _selective, EVERY),
        _case("quantize stochastically", form, partial(_quantize, True), goal=False),
    )
)
