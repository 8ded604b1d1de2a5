"""Loads kernels of the hub and compares what their functions return with torch: `hub_checks.py LOADER FOLDER ...`.

LOADER is `opforge` or `kernels`. The functions are known by their names; prints those that were compared, a line for
each folder. All are loaded before the first function is called.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

SIZES = (1, 7, 1024, 1031)


def main(loader: str, *folders: str) -> None:
    """Raises AssertionError for the first difference."""
    warnings.simplefilter("ignore")  # the hub's loader warns of torch's
    import torch  # noqa: F401 - a package opens a library that needs it

    loading = importlib.import_module(loader)
    modules = [loading.get_local_kernel(pathlib.Path(folder)) for folder in folders]
    other = {"opforge": "kernels", "kernels": "opforge"}[loader]
    assert other not in sys.modules, f"{loader} has imported {other}"
    for module in modules:
        names = [name for name in CHECKS if hasattr(module, name)]
        for name in names:
            CHECKS[name](module)
        print(*names)


def relu(module: Any) -> None:
    """Compares with torch: several sizes, what lies around the result, and the layer.

    Each tensor begins at a multiple of 64 bytes: a kernel of the hub reads whole vectors from there.
    """
    import torch

    for size in SIZES:
        x, around = torch.linspace(-3, 3, size), torch.full((size + 32,), 42.0)
        out = around[16 : 16 + size]
        module.relu(x, out)
        assert out.equal(x.relu()) and around.eq(42).sum() == 32
    layers = getattr(module, "layers", None)
    if layers is not None:
        assert layers.ReLU()(x).equal(x.relu())


def silu_and_mul(module: Any) -> None:
    """Compares results and gradients with torch."""
    import torch

    x = torch.linspace(-3, 3, 6 * 32).reshape(6, 32).requires_grad_()
    expected = torch.nn.functional.silu(x[..., :16]) * x[..., 16:]
    torch.testing.assert_close(module.silu_and_mul(x), expected)
    (gradient,) = torch.autograd.grad(module.silu_and_mul(x).square().sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), x)[0])


def float_to_chars(module: Any) -> None:
    """Compares the result with the input, which it returns."""
    import torch

    for value in (3.14, -1e300, 0.0):
        assert module.float_to_chars(torch.tensor([value], dtype=torch.float64)).tolist() == [value]


def conflicts(module: Any) -> None:
    """Counts from 0 on: another package with the same symbols has counters of its own."""
    import torch

    x = torch.ones(1)
    for function in (module.conflicts, module.conflicts_dynamic, module.conflicts_class):
        assert [function(x), function(x), function(x)] == [0, 1, 2]


CHECKS: dict[str, Callable[[Any], None]] = {
    "relu": relu,
    "silu_and_mul": silu_and_mul,
    "float_to_chars": float_to_chars,
    "conflicts": conflicts,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
