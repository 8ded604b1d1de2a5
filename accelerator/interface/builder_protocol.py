"""What an accelerator expects of an op's builder: all that this folder knows of the builders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class Compatibility(Protocol):
    """An answer that is true or false, and says why it is false."""

    @property
    def reasons(self) -> Iterable[str]:
        """Why the op cannot be used; empty where it can."""
        ...

    def __bool__(self) -> bool: ...


class Builder(Protocol):
    """An op's builder for one target."""

    @property
    def name(self) -> str:
        """The op's name."""
        ...

    def is_compatible(self) -> Compatibility:
        """Whether the op can be used for the builder's target, with the reasons."""
        ...

    def load(self, verbose: bool = False) -> Any:
        """Find the op or build it, and give its functions."""
        ...


class BuilderClass(Protocol):
    """Makes builders: called with the target as its only argument, or None for the host.

    It may state `devices`, those that it can be built for; otherwise it takes any.
    """

    def __call__(self, *, target: Any) -> Builder: ...
