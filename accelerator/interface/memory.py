"""Memory: how much the device has, and host memory that is page-locked for it. All sizes are in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.errors import SettingError

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import torch
    from torch.types import Device


class Memory(Devices):
    """The memory part of the interface. `cached` and `reserved` are two names for the same, as in older torch.

    A figure that a device does not count is 0, and resetting it does nothing.
    """

    def _bytes(self, device_index: Device, *names: str) -> int:
        index, function = self.index_of(device_index), self._device_function(*names)
        return 0 if function is None else int(function(index))

    def _reset(self, device_index: Device, *names: str) -> None:
        index, function = self.index_of(device_index), self._device_function(*names)
        if function is not None:
            function(index)

    def empty_cache(self) -> None:
        """Releases memory that torch holds but does not use."""
        function = self._device_function("empty_cache")
        if function is not None:
            function()

    def memory_allocated(self, device_index: Device = None) -> int:
        """Returns the bytes that tensors occupy now."""
        return self._bytes(device_index, "memory_allocated")

    def max_memory_allocated(self, device_index: Device = None) -> int:
        """Returns the most bytes that tensors occupied since the start or the last reset."""
        return self._bytes(device_index, "max_memory_allocated")

    def reset_max_memory_allocated(self, device_index: Device = None) -> None:
        """Resets the peak of `max_memory_allocated` to what is allocated now."""
        self._reset(device_index, "reset_peak_memory_stats", "reset_max_memory_allocated")

    def memory_cached(self, device_index: Device = None) -> int:
        """Returns the same as `memory_reserved`, under its older name."""
        return self.memory_reserved(device_index)

    def max_memory_cached(self, device_index: Device = None) -> int:
        """Returns the same as `max_memory_reserved`, under its older name."""
        return self.max_memory_reserved(device_index)

    def reset_max_memory_cached(self, device_index: Device = None) -> None:
        """Resets the peak of `max_memory_reserved` to what is reserved now."""
        self._reset(device_index, "reset_peak_memory_stats", "reset_max_memory_cached")

    def memory_stats(self, device_index: Device = None) -> dict[str, Any]:
        """Returns the allocator's counters by torch's names, such as `allocated_bytes.all.current`."""
        stats = self._device_function("memory_stats")
        if stats is not None:
            return dict(stats(self.index_of(device_index)))
        return {
            "allocated_bytes.all.current": self.memory_allocated(device_index),
            "allocated_bytes.all.peak": self.max_memory_allocated(device_index),
            "reserved_bytes.all.current": self.memory_reserved(device_index),
            "reserved_bytes.all.peak": self.max_memory_reserved(device_index),
        }

    def reset_peak_memory_stats(self, device_index: Device = None) -> None:
        """Resets every peak to its current value."""
        self._reset(device_index, "reset_peak_memory_stats")

    def memory_reserved(self, device_index: Device = None) -> int:
        """Returns the device's bytes that torch holds now, used or not."""
        return self._bytes(device_index, "memory_reserved", "memory_allocated")

    def max_memory_reserved(self, device_index: Device = None) -> int:
        """Returns the most bytes that torch held since the start or the last reset."""
        return self._bytes(device_index, "max_memory_reserved", "max_memory_allocated")

    def total_memory(self, device_index: Device = None) -> int:
        """Returns the bytes that the device has."""
        index = self.index_of(device_index)
        if index is None:
            index = self.current_device()
        return int(self._device_module().get_device_properties(index).total_memory)

    def available_memory(self, device_index: Device = None) -> int:
        """Returns the bytes that can still be allocated.

        What other processes use is subtracted if the device reports it.
        """
        return self.mem_get_info(device_index)[0]

    def mem_get_info(self, device_index: Device = None) -> tuple[int, int]:
        """Returns (free, total) bytes of the device."""
        function = self._device_function("mem_get_info")
        if function is None:
            total = self.total_memory(device_index)
            return total - self.memory_reserved(device_index), total
        free, total = function(self.index_of(device_index))
        return int(free), int(total)


class Pinning(Devices):
    """The pinning part of the interface, over torch's own: host memory from which a device copies directly."""

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(tuple(shape), pin_memory=True)

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        """Returns a page-locked tensor of the same size and dtype.

        With `make_copy` it holds the tensor's values. Without, its contents are undefined, and it has the tensor's
        shape if `match_shape` is true, else one dimension.
        """
        if make_copy:
            return self._torch_pin_memory(tensor)
        return self._torch_empty_pinned(tensor, tensor.shape if match_shape else (tensor.numel(),))

    def pin_empty(
        self, *size: int | Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        """Returns a page-locked tensor of this shape (numbers, or one sequence of them); its contents are undefined.

        Raises SettingError if `device` is not the host.
        """
        import torch

        _require_host(device)
        first = size[0] if len(size) == 1 else None
        shape = tuple(size if first is None or isinstance(first, int) else first)
        return self._torch_empty_pinned(torch.empty(0, dtype=dtype), [int(length) for length in shape])  # type: ignore[arg-type]

    def pin_empty_like(
        self, tensor: torch.Tensor, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Returns a page-locked tensor of the tensor's shape, and of its dtype if `dtype` is None.

        Its contents are undefined. Raises SettingError if `device` is not the host.
        """
        return self.pin_empty(tensor.shape, dtype=tensor.dtype if dtype is None else dtype, device=device)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Returns whether the tensor's memory is page-locked."""
        return bool(self._torch_is_pinned(tensor))

    def unpin_memory(self, tensor: torch.Tensor) -> None:
        """Does nothing, because torch unlocks memory when the tensor is freed. For accelerators that pin otherwise."""

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Page-locks `num_bytes` bytes from `address` on for the device.

        Returns False if nothing was done because the device has no such function or does not need it.
        """
        return False

    def unregister_host_memory(self, address: int) -> None:
        """Reverts `register_host_memory`. Does nothing if that returned False."""

    def pin_memory_alignment(self) -> int:
        """Returns the number of bytes of which the address and size of registered memory must be multiples."""
        return 1


def _require_host(device: str | torch.device) -> None:
    import torch

    try:
        is_host = torch.device(device).type == "cpu"
    except RuntimeError:
        is_host = False
    if not is_host:
        raise SettingError("device", str(device), "'cpu': only the host's memory can be page-locked")
