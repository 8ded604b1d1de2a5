"""`build-ops --report FILE`: what became of each op, for those who run many of these."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opforge.remote.farm.unit import Outcome

    from .shards import Shard


def write_report(outcomes: Sequence[Outcome], shard: Shard | None, seconds: float, path: str) -> None:
    """Writes the outcomes as one JSON document to a file. Its names are public. Raises OSError."""
    document = {
        "host": socket.gethostname(),
        "shard": list(shard) if shard else None,
        "seconds": round(seconds, 3),
        "units": [outcome._asdict() for outcome in outcomes],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
