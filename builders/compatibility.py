"""The answer to "can this op be used here?": true or false, with its reasons."""

from __future__ import annotations

from typing import NamedTuple


class Compatibility(NamedTuple):
    """True where there is no reason against. Use it as a bool, print it for the reasons."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "; ".join(self.reasons) or "compatible"
