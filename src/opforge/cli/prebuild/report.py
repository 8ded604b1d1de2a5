"""`build-ops --report FILE`: the outcome of each op, for a site that runs many builds."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from opforge.remote.farm.unit import Outcome

    from .shards import Shard


def check_folder(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Returns the option's value. Raises click.BadParameter if there is no folder that could hold that file."""
    folder = os.path.dirname(os.path.abspath(path)) if path else ""
    if path and not os.path.isdir(folder):
        raise click.BadParameter(f"{param.opts[0]} {path!r}: there is no folder {folder!r}: make it first")
    if path and not os.access(folder, os.W_OK):
        raise click.BadParameter(f"{param.opts[0]} {path!r}: the folder {folder!r} cannot be written: choose another")
    return path


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
