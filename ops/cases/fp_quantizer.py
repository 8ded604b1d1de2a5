"""Cases of the floating-point quantizer: each format, to codes and back, beside a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from opforge.ops.cases.form import OURS, Call, Case, MissingError, Place
from opforge.ops.cases.memory import COPY, copy_of
from opforge.ops.cases.rivals import DEEPSPEED
from opforge.ops.cases.traffic import quantized

if TYPE_CHECKING:
    from torch import Tensor

    from opforge.ops.fp_quantizer import FPQuantizer

GROUP, BLOCKS, EVERY = 512, 64, 4
"""Values of a group; blocks of a tensor, of which selective dequantization reads one in EVERY."""
FORMATS = {"12 bits": (12, 7), "8 bits": (8, 3), "8 bits, mantissa 2": (8, 2), "6 bits": (6, 2), "4 bits": (4, 1)}
"""Name -> bits of a code, bits of its mantissa."""
SIZES = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
GOAL = 0.8
FLOAT8 = "torch float8, no scales"


class Inputs(NamedTuple):
    """Values and their rows, with the quantizer."""

    quantizer: FPQuantizer
    values: Tensor
    rows: Tensor
    amount: float
    """Bytes that the call moves."""


def amount(bits: int, share: int, size: int, itemsize: int) -> float:
    """Returns the bytes of values, codes and scales: of 1 in `share`."""
    return quantized(size // share, itemsize, bits, GROUP)


def _inputs(bits: int, mantissa: int, share: int, place: Place) -> Inputs:
    import torch

    from opforge.ops.fp_quantizer import FPQuantizer

    quantizer = FPQuantizer(GROUP, bits, mantissa)
    random = torch.Generator().manual_seed(0)
    values = torch.randn(place.size, generator=random).to(place.torch_dtype())
    return Inputs(quantizer, values, quantizer.quantize(values), amount(bits, share, place.size, values.itemsize))


def _op(inputs: Inputs) -> tuple[Callable[..., None], Callable[..., None], Callable[..., None], tuple[int, ...]]:
    """Returns the op's functions, which write to memory that exists, and the arguments that name the format."""
    from opforge.ops.host_op import host_op

    op, quantizer = host_op("FPQuantizerBuilder"), inputs.quantizer
    form = (quantizer.group_size, quantizer.q_bits, quantizer.q_mantissa_bits)
    return op.fp_quantize_, op.fp_dequantize_, op.fp_selective_dequantize_, form


def _quantize(stochastic: bool, inputs: Inputs) -> Call:
    quantize, _, _, form = _op(inputs)
    return lambda: quantize(inputs.rows, inputs.values, *form, stochastic, 1)


def _dequantize(inputs: Inputs) -> Call:
    import torch

    _, dequantize, _, form = _op(inputs)
    out = torch.empty_like(inputs.values)
    return lambda: dequantize(out, inputs.rows, *form)


def _selective(inputs: Inputs) -> Call:
    import torch

    _, _, selective, form = _op(inputs)
    indexes = torch.arange(0, BLOCKS, EVERY, dtype=torch.int32)
    out = torch.empty(len(indexes), inputs.values.numel() // BLOCKS, dtype=inputs.values.dtype)
    return lambda: selective(out, inputs.rows, indexes, *form)


def _float8(back: bool, inputs: Inputs) -> Call:
    """Returns torch's cast to and from the nearest dtype that it has. It computes no scales."""
    import torch

    form = (inputs.quantizer.q_bits, inputs.quantizer.q_mantissa_bits)
    dtypes = {(8, 3): torch.float8_e4m3fn, (8, 2): torch.float8_e5m2}
    if form not in dtypes:
        raise MissingError(f"torch has no cast to floating-point codes of {form[0]} bits")
    codes, out = inputs.values.to(dtypes[form]), torch.empty_like(inputs.values)
    return (lambda: out.copy_(codes)) if back else (lambda: codes.copy_(inputs.values))


def _deepspeed(inputs: Inputs) -> Call:
    raise MissingError("its floating-point quantizer needs a GPU")


def _case(name: str, form: str, ours: Callable[[Inputs], Call], share: int = 1, goal: bool = True) -> Case:
    bits, mantissa = FORMATS[form]
    contenders: dict[str, Callable[[Inputs], Call]] = {OURS: ours, DEEPSPEED: _deepspeed}
    if share == 1:
        contenders[FLOAT8] = partial(_float8, name == "dequantize")
    contenders[COPY] = lambda inputs: copy_of(inputs.amount)
    is_quick = form in ("8 bits", "4 bits") and goal
    return Case(
        f"{name}, {form}",
        SIZES,
        partial(_inputs, bits, mantissa, share),
        contenders,
        (COPY,),
        partial(amount, bits, share),
        size_unit="values",
        dtypes=("float32", "bfloat16"),
        quick=(1 << 22,) if is_quick else (),
        goals={"reference": GOAL} if goal else {},
    )


FP_QUANTIZER = tuple(
    case
    for form in FORMATS
    for case in (
        _case("quantize", form, partial(_quantize, False)),
        _case("dequantize", form, _dequantize),
        _case(f"dequantize 1 of {EVERY} blocks", form, _selective, EVERY),
        _case("quantize stochastically", form, partial(_quantize, True), goal=False),
    )
)
