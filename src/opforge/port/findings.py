"""What was found about one place in a file."""

from __future__ import annotations

from typing import Any, NamedTuple

CONVERTED, LEFT, NOTE = "converted", "left", "note"
"""Rewritten, or to be rewritten; tied to a vendor and left to a person; rewritten, but to be looked at."""

KEEP = "opforge: keep"
"""In a comment: what stands on the line is meant for its vendor, and is neither changed nor mentioned."""


class Finding(NamedTuple):
    """One place. `line` and `column` count from 1, columns in characters."""

    line: int
    column: int
    kind: str
    text: str
    """The code as it stood, on one line."""
    message: str
    """What it becomes, or why it is left, or what to look at."""

    def as_json(self) -> dict[str, Any]:
        """Give it as a mapping of plain values."""
        return self._asdict()
