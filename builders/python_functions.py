"""Ops some of whose functions are written in Python, over those that their library registers."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

from opforge.builders.base import OpBuilder


class OpBuilderWithCalls(OpBuilder):
    """An OpBuilder whose module has more than the library's functions: what a schema cannot say, such as a list of
    lists of tensors, or a result that has to be allocated.
    """

    calls: ClassVar[Mapping[str, str]] = {}
    """Name in the module -> "module:name" of a function, whose first argument will be the module, or of any value."""

    def load(self, verbose: bool = False) -> Any:
        """As OpBuilder.load."""
        op = super().load(verbose)
        own = vars(op)
        for name, place in self.calls.items():
            if name not in own:
                module, _, attribute = place.partition(":")
                value = getattr(importlib.import_module(module), attribute)
                own[name] = functools.partial(value, op) if hasattr(value, "__code__") else value
        return op
