"""A finding of `opforge port`: its report about one place in a file."""

from __future__ import annotations

from typing import Any, NamedTuple

CONVERTED, LEFT, NOTE = "converted", "left", "note"
"""Rewritten, or to be rewritten; a vendor reference that is left to a person; rewritten, but to be reviewed."""

KEEP = "opforge: keep"
"""The comment that marks a line as meant for its vendor. Such a line is neither changed nor reported."""


class Finding(NamedTuple):
    """One place. `line` and `column` count from 1, columns in characters."""

    line: int
    column: int
    kind: str
    text: str
    """The original code, on one line."""
    message: str
    """The new code, the reason why the place is left, or what to review."""

    def as_json(self) -> dict[str, Any]:
        """Returns the finding as a dict of plain values."""
        return self._asdict()
