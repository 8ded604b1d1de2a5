"""Cases of random layerwise token dropping: half of the tokens of eight sequences, beside torch's gather and a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import ORDINARY, Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.memory import COPY, copied
from opforge.ops.cases.rivals import DEEPSPEED, TORCH
from opforge.ops.cases.traffic import TRAFFIC

if TYPE_CHECKING:
    from torch import Tensor

BATCH, CHANNELS = 8, 1024
GOAL = 0.8  # for what no cache holds


def amount(size: int, itemsize: int) -> float:
    """Returns the bytes that a gather or scatter of half of `size` tokens must move."""
    return TRAFFIC["token_gather"].amount(BATCH * (size // 2) * CHANNELS, itemsize)


def _indices(place: Place) -> Tensor:
    """Returns the sorted numbers of half of the tokens of each sequence, at least of one."""
    batch, tokens, _channels = place.shape
    random, kept = torch.Generator().manual_seed(1), (tokens + 1) // 2
    rows = [torch.randperm(tokens, generator=random)[:kept].sort().values for _ in range(batch)]
    return torch.stack(rows).to(torch.int32).to(place.device)


def _part(place: Place, indices: Tensor) -> Any:
    return place.draw(*indices.shape, place.shape[2], seed=2)


def _to_gather(place: Place) -> tuple[Any, ...]:
    """Returns memory for the part, the activations [batch, tokens, channels], and the numbers of the tokens."""
    indices = _indices(place)
    return _part(place, indices), place.draw(*place.shape), indices, True


def _to_scatter(place: Place) -> tuple[Any, ...]:
    """Returns the activations, the part that goes into them, and the numbers of its tokens."""
    indices = _indices(place)
    return place.draw(*place.shape), _part(place, indices), indices, True


def _gathered(_out: Tensor, *arguments: Any) -> Tensor:
    from opforge.ops.transformer import reference

    return reference.token_gather(*arguments)


def _scattered(*arguments: Any) -> Tensor:
    from opforge.ops.transformer import reference

    return reference.token_scatter(*arguments)


def _torch_gather(inputs: Prepared) -> Call:
    part, whole, indices, _batch_first = inputs.arguments
    rows = indices.long()[..., None].expand_as(part)
    return lambda: torch.gather(whole, 1, rows, out=part)


def _torch_scatter(inputs: Prepared) -> Call:
    whole, part, indices, _batch_first = inputs.arguments
    rows = indices.long()[..., None].expand_as(part)
    return lambda: whole.scatter_(1, rows, part)


def _deepspeed(_inputs: Prepared) -> Call:
    raise MissingError("its random LTD needs a GPU")


def _case(
    name: str,
    function: str,
    inputs: Callable[[Place], Any],
    reference: Callable[..., Any],
    torchs: Callable[[Prepared], Call],
    outputs: tuple[str, ...] = (),
) -> Case:
    return Case(
        name,
        inputs,
        function,
        reference=reference,
        dtypes=("float32", "bfloat16", "float16"),
        shapes=((1, 1, 1), (3, 5, 7), (2, 17, 1025)),
        tolerance=0,  # a copy
        outputs=outputs,
        refused_dtypes=(),  # it copies elements of any dtype
        strided=False,
        promises=(*ORDINARY, Promise.BATCH, Promise.ZEROS, Promise.PAYLOADS),
        batch={0: 0, 1: 0, 2: 0},
        sizes=(128, 512, 2048),
        shape=lambda size: (BATCH, size, CHANNELS),
        size_unit="tokens of a sequence",
        timed_dtypes=("float32", "bfloat16"),
        rivals={TORCH: torchs, DEEPSPEED: _deepspeed, COPY: copied},
        baseline=(COPY,),
        amount=amount,
        goals={"baseline": {2048: GOAL}},
    )


RANDOM_LTD = (
    _case("gather tokens", "tokens_gather_", _to_gather, _gathered, _torch_gather, ("out",)),
    _case("scatter tokens", "tokens_scatter_", _to_scatter, _scattered, _torch_scatter),
)
