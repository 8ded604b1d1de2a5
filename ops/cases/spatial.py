"""Cases of the biases of channels: one image of 320 channels, beside torch's operators and a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import ORDINARY, Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.memory import COPY, copied
from opforge.ops.cases.rivals import DEEPSPEED, TORCH
from opforge.ops.cases.traffic import TRAFFIC

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS = 320
ROUNDED_SUMS = {"bfloat16": 2.0**-5, "float16": 2.0**-8}
"""Each image's sum with its bias is rounded, as torch and DeepSpeed do: half a unit of up to 8, twice."""
GOAL = 0.8  # for what no cache holds


def amount(function: str, size: int, itemsize: int) -> float:
    """Returns the bytes that a function must move for images of `size` pixels."""
    return TRAFFIC[function].amount(size * CHANNELS, itemsize)


def _inputs(images: int, place: Place) -> tuple[Any, ...]:
    """Returns memory for the result, then each image, as rows of channels, with its bias."""
    pairs = [(place.draw(*place.shape, seed=n), place.draw(place.shape[-1], seed=4 + n)) for n in range(images)]
    return torch.zeros_like(pairs[0][0]), *(tensor for pair in pairs for tensor in pair)


def _expected(_out: Tensor, *images: Tensor) -> Tensor:
    from opforge.ops.transformer import reference

    return reference.channel_bias_add(*images)


def _torch_one(inputs: Prepared) -> Call:
    out, image, bias = inputs.arguments
    return lambda: torch.add(image, bias, out=out)


def _torch_two(inputs: Prepared) -> Call:
    out, first, bias, second, other_bias = inputs.arguments
    return lambda: torch.add(first + bias, second + other_bias, out=out)


def _deepspeed(_inputs: Prepared) -> Call:
    raise MissingError("its spatial inference needs a GPU")


def _case(name: str, function: str, images: int, torchs: Callable[[Prepared], Call]) -> Case:
    return Case(
        name,
        partial(_inputs, images),
        "channel_bias_add_",
        reference=_expected,
        dtypes=("float32", "bfloat16", "float16"),
        shapes=((2, 0), (1, 1), (1, 7), (3, 5), (2, 17, 15), (2, 1025)),
        tolerance=ROUNDED_SUMS if images > 1 else None,
        outputs=("out",),
        strided=False,
        promises=(*ORDINARY, Promise.BATCH, Promise.ZEROS),
        batch={0: 0, **{1 + 2 * image: 0 for image in range(images)}},
        sizes=(256, 4096, 65536),
        shape=lambda size: (size, CHANNELS),
        size_unit="pixels",
        timed_dtypes=("float32", "bfloat16"),
        rivals={TORCH: torchs, DEEPSPEED: _deepspeed, COPY: copied},
        baseline=(COPY,),
        amount=partial(amount, function),
        goals={"baseline": {65536: GOAL}},
    )


SPATIAL = (
    _case("bias", "nhwc_bias_add", 1, _torch_one),
    _case("bias, other image and its bias", "nhwc_bias_add_bias_add", 2, _torch_two),
)
