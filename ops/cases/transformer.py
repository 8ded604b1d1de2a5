"""Cases of the transformer layer: both ways, beside torch's TransformerEncoderLayer and the bare products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import TIME, Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.rivals import DEEPSPEED

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, HEADS, INNER, TOKENS = 512, 8, 2048, 128
ENCODER, PRODUCTS = "torch.nn.TransformerEncoderLayer", "its products alone"


def _rows(place: Place) -> tuple[Any, ...]:
    """Returns rows [sequences, tokens, channels] that require gradients, and the gradient of the result."""
    return place.draw(*place.shape).requires_grad_(), place.draw(*place.shape, seed=2)


def _both_ways(module: Callable[[Tensor], Tensor], inputs: Prepared) -> Call:
    rows, gradient = inputs.arguments

    def call() -> None:
        module(rows).backward(gradient)  # type: ignore[no-untyped-call]

    return call


def _ours(dropout: float, inputs: Prepared) -> Call:
    from opforge.ops.transformer.module import TransformerConfig, TransformerLayer

    config = TransformerConfig(WIDTH, HEADS, INNER, dropout, dropout, layer_norm_eps=1e-5)
    return _both_ways(TransformerLayer(config).to(inputs.place.torch_dtype()), inputs)


def _encoder(dropout: float, inputs: Prepared) -> Call:
    from torch import nn

    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, dropout, nn.functional.gelu, batch_first=True, norm_first=True
    )
    return _both_ways(layer.to(inputs.place.torch_dtype()), inputs)


def _products(inputs: Prepared) -> Call:
    """Returns the products of both ways, into memory that exists."""
    rows = inputs.arguments[0].detach().reshape(-1, WIDTH)
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


def _deepspeed(_inputs: Prepared) -> Call:
    raise MissingError("its transformer layer needs a GPU")


def amount(size: int, itemsize: int) -> float:
    """Returns the sequences of a call."""
    return size


def operations(size: int) -> float:
    """Returns the multiplications and additions of the products of both ways."""
    of_weights = WIDTH * (4 * WIDTH + 2 * INNER)
    return 3 * 2.0 * size * TOKENS * (of_weights + 2 * TOKENS * WIDTH)


def _timed(name: str, dropout: float, goals: dict[str, float], quick: tuple[int, ...]) -> Case:
    return Case(
        name,
        _rows,
        sizes=(1, 8),
        shape=lambda size: (size, TOKENS, WIDTH),
        ours=partial(_ours, dropout),
        rivals={ENCODER: partial(_encoder, dropout), DEEPSPEED: _deepspeed, PRODUCTS: _products},
        baseline=(PRODUCTS,),
        amount=amount,
        operations=operations,
        unit=TIME,
        size_unit="sequences of 128 tokens",
        quick=quick,
        goals=goals,
    )


SMALL_HEADS, SMALL_INNER, EPS = 2, 24, 1e-5
"""Of the layer that is compared."""


def _layer(place: Place) -> tuple[Any, ...]:
    """Returns rows, the gradient of the result, a mask, and the twelve parameters, those of norms near 1."""
    batch, tokens, width = place.shape
    mask = torch.zeros(batch, 1, 1, tokens, dtype=place.torch_dtype(), device=place.device)
    mask[-1, ..., tokens // 2 + 1 :] = -10.0
    vectors = ((width,),) * 3
    sizes = ((3 * width, width), (3 * width,), (width, width), *vectors, (SMALL_INNER, width), (SMALL_INNER,))
    drawn = [
        0.3 * place.draw(*size, seed=2 + number, dtype=torch.float32)
        for number, size in enumerate((*sizes, (width, SMALL_INNER), *vectors))
    ]
    weights = [1 + tensor / 3 if number in (4, 10) else tensor for number, tensor in enumerate(drawn)]
    rows, gradient = (place.draw(*place.shape, seed=seed) for seed in range(2))
    return rows, gradient, mask, *(tensor.to(place.torch_dtype()) for tensor in weights)


def _result_and_gradients(norms_first: bool, loaded: Any) -> Callable[..., Any]:
    """Returns a function of `_layer` that returns the layer's result, and the gradients of rows and parameters."""

    def call(rows: Tensor, gradient: Tensor, mask: Tensor, *weights: Tensor) -> list[Tensor]:
        form = (int(norms_first), 2, rows.shape[-1], SMALL_HEADS, SMALL_INNER, 0.0, 0.0, EPS, 0, norms_first, False)
        loaded.create_transformer_layer_fp32(*form, False, False, False, False)
        modes = (norms_first, False, False, False)
        saved = loaded.forward_fp32(int(norms_first), rows, mask, *weights, True, *modes)
        return [saved[0], *loaded.backward_fp32(int(norms_first), gradient, *saved, rows, mask, *weights)]

    return call


def _exact(norms_first: bool, rows: Tensor, gradient: Tensor, mask: Tensor, *weights: Tensor) -> list[Tensor]:
    from opforge.ops.transformer import reference

    leaves = [tensor.detach().requires_grad_() for tensor in (rows, *weights)]
    result = reference.transformer_layer(leaves[0], mask, leaves[1:], SMALL_HEADS, EPS, norms_first)
    return [result.detach(), *torch.autograd.grad(result, leaves, gradient)]


def _allowed(norms_first: bool, share: float, *arguments: Tensor) -> list[Tensor]:
    """Returns a share of the largest value: a gradient is a sum over all tokens, with an error in proportion to it."""
    exact = [value.nan_to_num(0.0) for value in _exact(norms_first, *arguments)]
    return [share * (value.abs() + value.abs().max().clamp_min(1.0)) for value in exact]


def _compared(norms_first: bool, dtype: str, share: float) -> Case:
    return Case(
        f"result and gradients, norms {'before' if norms_first else 'after'}, {dtype}",
        _layer,
        partial(_result_and_gradients, norms_first),
        reference=partial(_exact, norms_first),
        dtypes=(dtype,),
        shapes=((1, 1, 16), (2, 5, 16)),
        tolerance=partial(_allowed, norms_first, share),
        refused_dtypes=(),
        strided=False,
        promises=(Promise.REPEATS, Promise.NAN, Promise.ACCURACY),  # torch's products depend on threads and addresses
        accuracy=3.0,  # for the same reason: two runs of one of them differ by half
    )


def _gradient(place: Place) -> tuple[Any, ...]:
    """Returns the gradient of a GELU's result, its inputs, and the bias that is added to these."""
    sizes = (place.shape, place.shape, place.shape[-1:])
    return tuple(2 * place.draw(*size, seed=seed) for seed, size in enumerate(sizes))


def _slope(gradient: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
    from opforge.ops.transformer import reference

    total = (rows + bias).requires_grad_()
    return torch.autograd.grad(reference.gelu(total), total, gradient)[0]


TRANSFORMER = (
    _timed("layer, both ways", 0.0, {ENCODER: 1.0}, (1,)),
    _timed("layer with dropout, both ways", 0.1, {}, ()),
    *(
        _compared(norms_first, dtype, share)
        for norms_first in (True, False)
        for dtype, share in (("float32", 1e-4), ("bfloat16", 5e-2), ("float16", 1e-2))
    ),
)
BIAS_GELU_GRADIENT = Case(
    "gradient of bias and GELU",
    _gradient,
    "bias_gelu_grad_",
    reference=_slope,
    dtypes=("float32", "bfloat16", "float16"),
    shapes=((0, 8), (1, 1), (3, 15), (2, 3, 17), (2, 1025)),
    tolerance={"float32": 2e-6},  # 1 - sigmoid cancels
    strided=False,
    promises=(Promise.REPEATS, Promise.THREADS, Promise.ALIGNMENT, Promise.NAN, Promise.BATCH),
    batch={0: 0, 1: 0},
)
"""The slope at infinity is a limit, and far from 0 it is less than the least number: neither is promised.

ACCURACY is not either: relative to such a slope each error is large.
"""
TRANSFORMER = (*TRANSFORMER, BIAS_GELU_GRADIENT)
STOCHASTIC_TRANSFORMER = (TRANSFORMER[0], *TRANSFORMER[2:])
