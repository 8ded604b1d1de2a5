"""Cases of random layerwise token dropping: half of the tokens of eight sequences, beside torch's gather and a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.ops.cases.form import OURS, Call, Case, MissingError, Place
from opforge.ops.cases.memory import COPY, copy_of
from opforge.ops.cases.rivals import DEEPSPEED, TORCH
from opforge.ops.cases.traffic import TRAFFIC

if TYPE_CHECKING:
    from torch import Tensor

BATCH, CHANNELS = 8, 1024
GOAL = 0.8  # for what no cache holds


class Inputs(NamedTuple):
    """Activations, the retained ones, and their numbers."""

    op: Any
    whole: Tensor
    part: Tensor
    indices: Tensor


def amount(size: int, itemsize: int) -> float:
    """Returns the bytes that a gather or scatter of half of `size` tokens must move."""
    return TRAFFIC["token_gather"].amount(BATCH * (size // 2) * CHANNELS, itemsize)


def _setup(place: Place) -> Inputs:
    import torch

    from opforge.builders.cpu.transformer.random_ltd import RandomLTDBuilder

    op: Any = RandomLTDBuilder().load()
    random = torch.Generator().manual_seed(0)
    whole = torch.randn(BATCH, place.size, CHANNELS, generator=random).to(place.torch_dtype())
    rows = [torch.randperm(place.size, generator=random)[: place.size // 2] for _ in range(BATCH)]
    indices = torch.stack(rows).sort(-1).values.to(torch.int32)
    return Inputs(op, whole, op.token_gather(whole, indices, True), indices)


def _gather(inputs: Inputs) -> Call:
    op, whole, part, indices = inputs
    return lambda: op.tokens_gather_(part, whole, indices, True)


def _torch_gather(inputs: Inputs) -> Call:
    import torch

    rows = inputs.indices.long()[..., None].expand_as(inputs.part)
    return lambda: torch.gather(inputs.whole, 1, rows, out=inputs.part)


def _scatter(inputs: Inputs) -> Call:
    op, whole, part, indices = inputs
    return lambda: op.tokens_scatter_(whole, part, indices, True)


def _torch_scatter(inputs: Inputs) -> Call:
    rows = inputs.indices.long()[..., None].expand_as(inputs.part)
    return lambda: inputs.whole.scatter_(1, rows, inputs.part)


def _deepspeed(inputs: Inputs) -> Call:
    raise MissingError("its random LTD needs a GPU")


def _copy(inputs: Inputs) -> Call:
    return copy_of(amount(inputs.whole.shape[1], inputs.whole.itemsize))


RANDOM_LTD = tuple(
    Case(
        name,
        (128, 512, 2048),
        _setup,
        {OURS: ours, TORCH: torchs, DEEPSPEED: _deepspeed, COPY: _copy},
        (COPY,),
        amount,
        size_unit="tokens of a sequence",
        dtypes=("float32", "bfloat16"),
        goals={"reference": {2048: GOAL}},
    )
    for name, ours, torchs in (
        ("gather tokens", _gather, _torch_gather),
        ("scatter tokens", _scatter, _torch_scatter),
    )
)
