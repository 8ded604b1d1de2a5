"""An op in C++ that is shipped built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_op: Any = None


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)², element by element, of a float32 tensor on the CPU; gives a new tensor of the same shape."""
    return op().squared_relu(x)


def op() -> Any:
    """The loaded op; `op().origin` says where it came from."""
    global _op
    if _op is None:
        from .builders import SquaredReluBuilder

        _op = SquaredReluBuilder().load()
    return _op
