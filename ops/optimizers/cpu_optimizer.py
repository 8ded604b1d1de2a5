"""The base class of the CPU optimizers, and how their ops are loaded."""

from __future__ import annotations

import functools
from typing import Any

from .list_optimizer import ListOptimizer


@functools.cache
def load_op(builder: str) -> Any:
    """Returns the functions of a CPU op and builds it first if necessary. The accelerator in use does not matter."""
    from opforge.builders.cpu import BUILDERS

    module, _, name = BUILDERS[builder].partition(":")
    return getattr(__import__(module, fromlist=[name]), name)().load()


class CPUOptimizer(ListOptimizer):
    """A torch optimizer for dense parameters on the CPU. It counts steps in Python integers.

    `_update` passes all arguments by position: by name they take 3 us more, a fifth of the step of a small parameter.
    """

    device = "cpu"
