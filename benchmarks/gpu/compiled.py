"""The tasks of `rows`, beside torch.compile. They are slow to prepare, and have no target."""

from __future__ import annotations

from collections.abc import Iterator

from . import rows
from .timing import Figure, Gpu


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """Yields the figures of `rows.run`, beside torch.compile."""
    yield from rows.run(gpu, only, compiled=True)
