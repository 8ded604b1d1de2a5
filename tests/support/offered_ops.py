"""Ops as an accelerator offers them, with builders of another package: none of them is an OpBuilder."""

from __future__ import annotations

from typing import Any

from opforge.accelerator.target import Target
from opforge.builders.compatibility import Compatibility
from opforge.report.ops import OfferedOp


class OneOpAccelerator:
    """An accelerator whose only op has the given builder class."""

    name = "cpu"

    def __init__(self, builder_class: Any) -> None:
        self.builder_class = builder_class

    def target(self) -> Target:
        return Target("cpu", ("x86-64",))

    def get_op_builder(self, name: str) -> Any:
        return self.builder_class


class IncompatibleBuilder:
    """A builder whose op cannot be used here."""

    reasons: tuple[str, ...] = ("it needs a device",)

    def __init__(self, *, target: Target) -> None:
        self.target = target

    def is_compatible(self) -> Compatibility:
        return Compatibility(self.reasons)


class CompatibleBuilder(IncompatibleBuilder):
    """A builder whose op can be used here."""

    reasons = ()


def offer(name: str, builder_class: Any) -> OfferedOp:
    """Returns the offer of an op with this builder class."""
    accelerator: Any = OneOpAccelerator(builder_class)
    return OfferedOp(name, accelerator)
