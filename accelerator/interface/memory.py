"""A device's memory: how much is used, was used at most, and is there. All sizes are in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .device import Devices

if TYPE_CHECKING:
    from typing import Any


class Memory(Devices):
    """The memory part of the interface. `cached` and `reserved` are two names of one thing, as in torch's history.

    A device that does not count what is asked for answers 0, and resets nothing.
    """

    def _bytes(self, device_index: int | None, *names: str) -> int:
        count = self._device_function(*names)
        return 0 if count is None else int(count(device_index))

    def _reset(self, device_index: int | None, *names: str) -> None:
        reset = self._device_function(*names)
        if reset is not None:
            reset(device_index)

    def empty_cache(self) -> None:
        """Give memory that torch holds but does not use back to the device."""
        empty = self._device_function("empty_cache")
        if empty is not None:
            empty()

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Give the bytes that tensors take now."""
        return self._bytes(device_index, "memory_allocated")

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """Give the most bytes that tensors took since the start or the last reset."""
        return self._bytes(device_index, "max_memory_allocated")

    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        """Let the peak of `max_memory_allocated` start from what is allocated now."""
        self._reset(device_index, "reset_peak_memory_stats", "reset_max_memory_allocated")

    def memory_cached(self, device_index: int | None = None) -> int:
        """Give the same as `memory_reserved`, under its older name."""
        return self.memory_reserved(device_index)

    def max_memory_cached(self, device_index: int | None = None) -> int:
        """Give the same as `max_memory_reserved`, under its older name."""
        return self.max_memory_reserved(device_index)

    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        """Let the peak of `max_memory_reserved` start from what is reserved now."""
        self._reset(device_index, "reset_peak_memory_stats", "reset_max_memory_cached")

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        """Give the allocator's counters by torch's names (`allocated_bytes.all.current`, ...)."""
        stats = self._device_function("memory_stats")
        if stats is not None:
            return dict(stats(device_index))
        return {
            "allocated_bytes.all.current": self.memory_allocated(device_index),
            "allocated_bytes.all.peak": self.max_memory_allocated(device_index),
            "reserved_bytes.all.current": self.memory_reserved(device_index),
            "reserved_bytes.all.peak": self.max_memory_reserved(device_index),
        }

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Let every peak start from the present value."""
        self._reset(device_index, "reset_peak_memory_stats")

    def memory_reserved(self, device_index: int | None = None) -> int:
        """Give the bytes that torch holds from the device now, used or not."""
        return self._bytes(device_index, "memory_reserved", "memory_allocated")

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        """Give the most bytes that torch held since the start or the last reset."""
        return self._bytes(device_index, "max_memory_reserved", "max_memory_allocated")

    def total_memory(self, device_index: int | None = None) -> int:
        """Give the bytes that the device has."""
        index = self.current_device() if device_index is None else device_index
        return int(self._device_module().get_device_properties(index).total_memory)

    def available_memory(self, device_index: int | None = None) -> int:
        """Give the bytes that could still be allocated, counting what other processes took where the device tells."""
        return self.mem_get_info(device_index)[0]

    def mem_get_info(self, device_index: int | None = None) -> tuple[int, int]:
        """Give (free, total) bytes of the device."""
        ask = self._device_function("mem_get_info")
        if ask is None:
            total = self.total_memory(device_index)
            return total - self.memory_reserved(device_index), total
        free, total = ask(device_index)
        return int(free), int(total)
