"""The same as `rows`, beside torch.compile: slow to prepare, and no target names it."""

from __future__ import annotations

from collections.abc import Iterator

from . import rows
from .timing import Figure, Gpu


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """As `rows.run`."""
    yield from rows.run(gpu, only, compiled=True)
