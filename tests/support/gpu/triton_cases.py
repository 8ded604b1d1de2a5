"""Inputs for tests that run the Triton ops by Triton's interpreter, and the tolerances of their results."""

from __future__ import annotations

import importlib

import pytest
import torch
from support.gpu import triton_interpreter  # noqa: F401 - before anything else imports Triton

from opforge.builders.triton import TRITON_BUILDERS

# numpy, which interprets Triton, warns about what a GPU does silently: x / 0, an overflow to infinity, a row of NaN.
INTERPRETED = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
DTYPES = list(TOLERANCE)


def builder_of(name: str):
    """Returns the class of one of opforge's Triton builders."""
    module, _, attribute = TRITON_BUILDERS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    """Asserts that results agree with the reference, within `times` the tolerance of their dtype."""
    allowed = TOLERANCE[dtype] * times
    torch.testing.assert_close(actual.double(), expected.double(), rtol=allowed, atol=allowed)


def as_doubles(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Returns copies in float64 that require a gradient if the originals do."""
    return [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in tensors]


def matrix(rows: int, columns: int, dtype: torch.dtype, gap: int = 0) -> torch.Tensor:
    """Returns a random matrix that requires a gradient, with `gap` unused values between its rows."""
    whole = torch.randn(rows, columns + gap, dtype=torch.float32).to(dtype)
    return whole[:, :columns].detach().requires_grad_()


SHAPES = [
    (3, 96, 0),
    (2, 77, 0),
    (5, 1, 0),
    (1, 16, 16),
    (2, 4000, 0),
    (2, 96, 3),
    (2, 9008, 0),
    (2, 17000, 8),
    (2, 5001, 0),
    (0, 8, 0),
]


def zeros(*sizes, dtype=torch.float32):
    """Returns a vector of zeros for each size."""
    return [torch.zeros(size, dtype=dtype) for size in sizes]


GO = torch.zeros(1, dtype=torch.int32)
ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.1, "step": 1}
ADAM |= {"adamw_mode": True, "bias_correction": True}
LION = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
LAMB = {**ADAM, "max_coeff": 10.0, "min_coeff": 0.01, "scale": 1.0, "eps_inside_sqrt": False}
del LAMB["adamw_mode"]
