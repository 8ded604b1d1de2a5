"""The base class of the CPU optimizers."""

from __future__ import annotations

from .list_optimizer import ListOptimizer


class CPUOptimizer(ListOptimizer):
    """A torch optimizer for dense parameters on the CPU. It counts steps in Python integers.

    `_update` passes all arguments by position: by name they take 3 us more, a fifth of the step of a small parameter.
    """

    device = "cpu"
