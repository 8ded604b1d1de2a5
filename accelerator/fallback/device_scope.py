"""A device number that holds inside a block, for devices that are only numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Numbered(Protocol):
    """What has a current device number."""

    def current_device(self) -> int:
        """Give the number."""
        ...

    def set_device(self, device_index: int) -> None:
        """Change the number."""
        ...


@contextmanager
def device_scope(accelerator: Numbered, device_index: int | None) -> Iterator[None]:
    """Make the number the current one within the block; None changes nothing."""
    before = accelerator.current_device()
    if device_index is not None:
        accelerator.set_device(device_index)
    try:
        yield
    finally:
        accelerator.set_device(before)
