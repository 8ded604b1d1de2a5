"""Apple's GPUs, by Metal. There is one device, one queue, and the host's own memory."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from opforge.accelerator.fallback.streams import DEFAULT_STREAM, current_stream
from opforge.accelerator.interface.rng import OneGenerator
from opforge.accelerator.vendors.vendor import Vendor

if TYPE_CHECKING:
    from typing import Any

    import torch


class MPSAccelerator(OneGenerator, Vendor):
    """The GPU of a Mac. Its one queue keeps the program's order; streams are names for it."""

    name = torch_device = "mps"
    package = "torch"

    def _device_obstacle(self) -> str:
        system = os.uname().sysname
        if system != "Darwin":
            return f"no device: Metal needs macOS, and this is {system}"
        import torch

        if not torch.backends.mps.is_built():
            return f"this torch ({torch.__version__}) is built without MPS"
        return "" if torch.backends.mps.is_available() else "no device: torch.backends.mps.is_available() is False"

    def _model(self) -> str:
        import torch

        named = getattr(torch.backends.mps, "get_name", None)
        return str(named()) if named is not None else self.name

    def resolves_data_dependency(self) -> bool:
        """Give True: there is one queue."""
        return True

    def set_device(self, device_index: int) -> None:
        """Do nothing: there is one device."""

    def current_device(self) -> int:
        """Give 0."""
        return 0

    def synchronize(self, device_index: int | None = None) -> None:
        """Wait until the device has done all that was asked of it."""
        self._device_module().synchronize()

    # streams: names for the one queue

    @cached_property
    def _queue(self) -> tuple[type[Any], type[Any], Any]:
        from opforge.accelerator.vendors.metal_queue import queue_classes

        stream, event = queue_classes(self._device_module())
        return stream, event, stream()

    @property
    def Stream(self) -> type[Any]:
        """The class of a stream: a name for the device's one queue."""
        return self._queue[0]

    @property
    def Event(self) -> type[Any]:
        """The class of an event: torch's for the device, which takes and ignores a stream."""
        return self._queue[1]

    def current_stream(self, device_index: int | None = None) -> Any:
        """Give the stream whose scope the thread is in, or the default one."""
        stream = current_stream()
        return self.default_stream() if stream is DEFAULT_STREAM else stream

    def default_stream(self, device_index: int | None = None) -> Any:
        """Give the stream that is current outside of scopes."""
        return self._queue[2]

    # random numbers

    def default_generator(self, device_index: int | None = None) -> torch.Generator:
        """Give the device's own generator."""
        generator: torch.Generator = self._device_module()._get_default_mps_generator()
        return generator

    # memory: Metal counts no peaks, so the present figures stand for them

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Give the bytes that tensors take now."""
        return int(self._device_module().current_allocated_memory())

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """Give the bytes that tensors take now: no peak is kept."""
        return self.memory_allocated()

    def memory_reserved(self, device_index: int | None = None) -> int:
        """Give the bytes that Metal gave this process, used or not."""
        return int(self._device_module().driver_allocated_memory())

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        """Give the bytes that Metal gave this process now: no peak is kept."""
        return self.memory_reserved()

    def total_memory(self, device_index: int | None = None) -> int:
        """Give the bytes that Metal recommends not to exceed; the memory is the host's."""
        return int(self._device_module().recommended_max_memory())

    def is_bf16_supported(self) -> bool:
        """Whether the device computes in bfloat16: from macOS 14 on."""
        import torch

        return bool(torch.backends.mps.is_macos_or_newer(14, 0))

    def is_fp64_supported(self) -> bool:
        """Give False: Metal has no float64."""
        return False
