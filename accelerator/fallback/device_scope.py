"""A device number that applies inside a block, for devices that are only numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Numbered(Protocol):
    """An object with a current device number."""

    def current_device(self) -> int:
        """Returns the number."""
        ...

    def set_device(self, device_index: int) -> None:
        """Changes the number."""
        ...


@contextmanager
def device_scope(accelerator: Numbered, device_index: int | None) -> Iterator[None]:
    """Makes the number the current one within the block; None changes nothing."""
    previous = accelerator.current_device()
    if device_index is not None:
        accelerator.set_device(device_index)
    try:
        yield
    finally:
        accelerator.set_device(previous)
