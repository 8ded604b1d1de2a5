"""The base of the CPU optimizers, and their ops."""

from __future__ import annotations

import functools
from typing import Any

from .list_optimizer import ListOptimizer


@functools.cache
def load_op(builder: str) -> Any:
    """The functions of a CPU op, built first if need be. They run on the CPU whatever the accelerator is."""
    from opforge.builders.cpu import BUILDERS

    module, _, name = BUILDERS[builder].partition(":")
    return getattr(__import__(module, fromlist=[name]), name)().load()


class CPUOptimizer(ListOptimizer):
    """A torch optimizer for dense parameters on the CPU; its steps are counted by Python integers."""

    device = "cpu"
