"""Derivatives that do not exist are errors: of the ops that compute gradients, and forward ones (jvp) of all ops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.forward_ad import unpack_dual


def refuse(op: Any, library: torch.library.Library) -> None:
    """Makes a second derivative through `op`, which computes gradients, an error.

    Without it torch warns, and goes on as if the gradients depended on nothing.
    """

    def backward(_ctx: Any, *_gradients: Any) -> Any:
        raise RuntimeError(
            f"{_name(op)} has no gradient: opforge computes first derivatives only. Where a loss contains gradients "
            "(create_graph=True), use torch's own operations"
        )

    torch.library.register_autograd(op, backward, lib=library)


def refuse_forward(op: Any, arguments: Iterable[Any]) -> None:
    """Raises RuntimeError if a tensor has a tangent, which torch would replace by zeros behind the op."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and unpack_dual(argument).tangent is not None:  # type: ignore[no-untyped-call]
            raise RuntimeError(
                f"{_name(op)} has no forward derivative (jvp): opforge computes gradients backward only. Use "
                "torch.autograd.grad, or torch's own operations"
            )


def _name(op: Any) -> str:
    return str(op).removesuffix(".default")
