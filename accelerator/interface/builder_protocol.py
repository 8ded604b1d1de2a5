"""The part of an op's builder that an accelerator needs; this folder uses nothing else of the builders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class Compatibility(Protocol):
    """A result that is true or false, with the reasons if it is false."""

    @property
    def reasons(self) -> Iterable[str]:
        """Why the op cannot be used; empty if it can."""
        ...

    def __bool__(self) -> bool: ...


class Builder(Protocol):
    """An op's builder for one target."""

    @property
    def name(self) -> str:
        """The op's name."""
        ...

    def is_compatible(self) -> Compatibility:
        """Returns whether the op can be used for the builder's target, with the reasons."""
        ...

    def load(self, verbose: bool = False) -> Any:
        """Finds or builds the op, and returns its functions."""
        ...


class BuilderClass(Protocol):
    """A builder's class: called with the target as its only argument, or with None for the host; see `create`.

    It may have an attribute `devices`, the devices that it can be built for; without one it accepts any.
    """

    def __call__(self, *, target: Any) -> Builder:
        """Makes a builder for the target."""
        ...


def create(builder_class: Any, target: Any, **options: Any) -> Any:
    """Returns a builder of the class for a target.

    The constructor of a builder in DeepSpeed's form takes no target: `__init__(self)`, `__init__(self, name=None)`. It
    is called without arguments, and if it is an OpBuilder it then gets the target and the options.
    """
    code = getattr(getattr(builder_class, "__init__", None), "__code__", None)
    if code is None or "target" in _parameters(code) or code.co_flags & VAR_KEYWORDS:
        return builder_class(target=target, **options)
    builder = builder_class()
    if (request := getattr(builder, "_request", None)) is not None:
        request(target, **options)
    return builder


VAR_KEYWORDS = 8
"""The flag of a function's code that takes any further arguments by name. `inspect` is slow to import."""


def _parameters(code: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names
