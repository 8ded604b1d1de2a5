"""A C++ op whose wheel carries its library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_op: Any = None


def squared_relu(x: Tensor) -> Tensor:
    """Returns max(x, 0)², element by element, for a float32 tensor on the CPU, as a new tensor of the same shape."""
    return op().squared_relu(x)


def op() -> Any:
    """Returns the loaded op. `op().origin` is where it was loaded from."""
    global _op
    if _op is None:
        from .builders import SquaredReluBuilder

        _op = SquaredReluBuilder().load()
    return _op
