"""The ops that compute gradients have none themselves."""

from __future__ import annotations

from typing import Any

import torch


def refuse(op: Any, library: torch.library.Library) -> None:
    """Makes a second derivative through `op`, which computes gradients, an error.

    Without it torch warns, and goes on as if the gradients depended on nothing.
    """
    name = str(op).removesuffix(".default")

    def backward(_ctx: Any, *_gradients: Any) -> Any:
        raise RuntimeError(
            f"{name} has no gradient: opforge computes first derivatives only. Where a loss contains gradients "
            "(create_graph=True), use torch's own operations"
        )

    torch.library.register_autograd(op, backward, lib=library)
