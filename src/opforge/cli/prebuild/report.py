"""`build-ops --report FILE`: what became of each op, for those who run many of these."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opforge.cache.filesystem.files import UNREADABLE, read_json
from opforge.cache.records.entry import BUILD

if TYPE_CHECKING:
    from .run import Outcome
    from .shards import Shard


def write_report(outcomes: Sequence[Outcome], shard: Shard | None, seconds: float, path: str) -> None:
    """Writes the outcomes as one JSON document to a file. Its names are public. Raises OSError."""
    document = {
        "host": socket.gethostname(),
        "shard": list(shard) if shard else None,
        "seconds": round(seconds, 3),
        "units": [_unit(outcome) for outcome in outcomes],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


def _unit(outcome: Outcome) -> dict[str, Any]:
    size, peak = None, None
    if outcome.path:
        try:
            size = os.stat(outcome.path).st_size
            peak = read_json(os.path.join(os.path.dirname(outcome.path), BUILD)).get("peak_bytes")
        except UNREADABLE:
            pass  # what was fetched does not say how much memory its compilers needed
    return {**outcome._asdict(), "bytes": size, "peak_bytes": peak if outcome.state == "built" else None}
