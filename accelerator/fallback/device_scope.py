"""A device number that applies inside a block, for devices that are only numbers."""

from __future__ import annotations

from typing import Protocol


class Numbered(Protocol):
    """An object with a current device number."""

    def current_device(self) -> int:
        """Returns the number."""
        ...

    def set_device(self, device_index: int) -> None:
        """Changes the number."""
        ...


class device_scope:
    """A scope in which the number is the current one; None changes nothing."""

    __slots__ = ("_accelerator", "_device_index", "_previous")

    def __init__(self, accelerator: Numbered, device_index: int | None) -> None:
        self._accelerator, self._device_index = accelerator, device_index

    def __enter__(self) -> None:
        self._previous = self._accelerator.current_device()
        if self._device_index is not None:
            self._accelerator.set_device(self._device_index)

    def __exit__(self, *error: object) -> None:
        self._accelerator.set_device(self._previous)
