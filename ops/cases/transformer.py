"""Cases of the transformer layer: both ways, beside torch's TransformerEncoderLayer and the bare products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from opforge.ops.cases.form import OURS, TIME, Call, Case, MissingError, Place
from opforge.ops.cases.rivals import DEEPSPEED

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, HEADS, INNER, TOKENS = 512, 8, 2048, 128
ENCODER, PRODUCTS = "torch.nn.TransformerEncoderLayer", "its products alone"


class Inputs(NamedTuple):
    """Rows that require gradients, the gradient of the result, and the ratio of dropout."""

    rows: Tensor
    gradient: Tensor
    dropout: float


def _setup(dropout: float, place: Place) -> Inputs:
    import torch

    random = torch.Generator().manual_seed(0)
    rows, gradient = (torch.randn(place.size, TOKENS, WIDTH, generator=random) for _ in range(2))
    return Inputs(rows.to(place.torch_dtype()).requires_grad_(), gradient.to(place.torch_dtype()), dropout)


def _both_ways(module: Callable[[Tensor], Tensor], inputs: Inputs) -> Call:
    def call() -> None:
        module(inputs.rows).backward(inputs.gradient)  # type: ignore[no-untyped-call]

    return call


def _ours(inputs: Inputs) -> Call:
    from opforge.ops.transformer.module import TransformerConfig, TransformerLayer

    config = TransformerConfig(WIDTH, HEADS, INNER, inputs.dropout, inputs.dropout, layer_norm_eps=1e-5)
    layer = TransformerLayer(config)
    return _both_ways(layer.to(inputs.rows.dtype), inputs)


def _encoder(inputs: Inputs) -> Call:
    from torch import nn

    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, inputs.dropout, nn.functional.gelu, batch_first=True, norm_first=True
    )
    return _both_ways(layer.to(inputs.rows.dtype), inputs)


def _products(inputs: Inputs) -> Call:
    """Returns the products of both ways, into memory that exists."""
    import torch

    rows = inputs.rows.detach().reshape(-1, WIDTH)
    count, dtype = rows.shape[0], rows.dtype
    wide = torch.randn(count, INNER, dtype=dtype)
    products: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(left: Tensor, right: Tensor) -> None:
        products.append((left, right, torch.empty((*left.shape[:-1], right.shape[-1]), dtype=dtype)))

    for source, size in ((rows, 3 * WIDTH), (rows, WIDTH), (rows, INNER), (wide, WIDTH)):
        weight, gradient = (torch.randn(shape, dtype=dtype) for shape in ((size, source.shape[1]), (count, size)))
        add(source, weight.t())
        add(gradient, weight)
        add(gradient.t(), source)
    heads = torch.randn(count // TOKENS * HEADS, TOKENS, WIDTH // HEADS, dtype=dtype)
    scores = heads @ heads.transpose(1, 2)
    for _ in range(2):
        add(heads, heads.transpose(1, 2))
        add(scores, heads)
        add(scores, heads)

    def run() -> None:
        for left, right, out in products:
            torch.matmul(left, right, out=out)

    return run


def _deepspeed(inputs: Inputs) -> Call:
    raise MissingError("its transformer layer needs a GPU")


def amount(size: int, itemsize: int) -> float:
    """Returns the sequences of a call."""
    return size


def _case(name: str, dropout: float, goals: dict[str, float], quick: tuple[int, ...]) -> Case:
    return Case(
        name,
        (1, 8),
        partial(_setup, dropout),
        {OURS: _ours, ENCODER: _encoder, DEEPSPEED: _deepspeed, PRODUCTS: _products},
        (PRODUCTS,),
        amount,
        TIME,
        "sequences of 128 tokens",
        quick=quick,
        goals=goals,
    )


TRANSFORMER = (
    _case("layer, both ways", 0.0, {ENCODER: 1.0}, (1,)),
    _case("layer with dropout, both ways", 0.1, {}, ()),
)
STOCHASTIC_TRANSFORMER = TRANSFORMER[:1]
