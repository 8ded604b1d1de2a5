"""Apple's GPUs, through Metal: one device, one queue, and the host's memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opforge.accelerator.fallback.streams import DEFAULT_STREAM, current_stream
from opforge.accelerator.interface.accelerator import OneGenerator
from opforge.accelerator.vendors.vendor import Vendor
from opforge.foundation.lazy import cached_property

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import torch
    from torch.types import Device


class MPSAccelerator(OneGenerator, Vendor):
    """A Mac's GPU. Its one queue keeps the program's order, and every stream is that queue."""

    name = torch_device = "mps"
    package = "torch"

    def _device_problem(self) -> str | None:
        system = os.uname().sysname
        if system != "Darwin":
            return f"no device: Metal needs macOS, and this is {system}"
        import torch

        if not torch.backends.mps.is_built():
            return f"this torch ({torch.__version__}) is built without MPS"
        return None if torch.backends.mps.is_available() else "no device: torch.backends.mps.is_available() is False"

    def _model(self) -> str:
        import torch

        get_name = getattr(torch.backends.mps, "get_name", None)
        return str(get_name()) if get_name is not None else self.name

    def resolves_data_dependency(self) -> bool:
        """Returns True, because there is one queue."""
        return True

    def set_device(self, device_index: Device) -> None:
        """Does nothing, because there is one device. Raises SettingError for any other."""
        self.index_of(device_index)

    def current_device(self) -> int:
        """Returns 0."""
        return 0

    def synchronize(self, device_index: Device = None, *, device: Device = None) -> None:
        """Waits until the device has finished all its work."""
        self.index_of(device_index if device is None else device)
        self._device_module().synchronize()

    # streams: all are the one queue. torch has others from 2.15 on, whose class is another than ours.

    def _has_streams(self) -> bool:
        return False

    @cached_property
    def _queue(self) -> tuple[type[Any], type[Any], Any]:
        from opforge.accelerator.vendors.metal_queue import queue_classes

        stream_class, event_class = queue_classes(self._device_module())
        return stream_class, event_class, stream_class()

    @cached_property
    def Stream(self) -> type[Any]:
        """The class of a stream, whose objects are all the device's one queue."""
        return self._queue[0]

    @cached_property
    def Event(self) -> type[Any]:
        """The class of an event: torch's for the device, except that it accepts and ignores a stream."""
        return self._queue[1]

    def current_stream(self, device_index: Device = None) -> Any:
        """Returns the stream whose scope the calling thread is in, else the default one."""
        self.index_of(device_index)
        stream = current_stream()
        return self.default_stream() if stream is DEFAULT_STREAM else stream

    def set_stream(self, stream: Any) -> None:
        """Makes the stream the calling thread's current one: work goes to the one queue, whichever it is."""
        super().set_stream(DEFAULT_STREAM if stream is self._queue[2] else stream)

    def default_stream(self, device_index: Device = None) -> Any:
        """Returns the stream that is current outside of scopes."""
        self.index_of(device_index)
        return self._queue[2]

    # random numbers

    def default_generator(self, device_index: Device = None) -> torch.Generator:
        """Returns the device's default generator."""
        self.index_of(device_index)
        generator: torch.Generator = self._device_module()._get_default_mps_generator()
        return generator

    # memory: Metal keeps no peaks, so the current figures are returned for them

    def memory_allocated(self, device_index: Device = None) -> int:
        """Returns the bytes that tensors occupy now."""
        self.index_of(device_index)
        return int(self._device_module().current_allocated_memory())

    def max_memory_allocated(self, device_index: Device = None) -> int:
        """Returns the bytes that tensors occupy now, because no peak is kept."""
        return self.memory_allocated(device_index)

    def memory_reserved(self, device_index: Device = None) -> int:
        """Returns the bytes that Metal allocated for this process, used or not."""
        self.index_of(device_index)
        return int(self._device_module().driver_allocated_memory())

    def max_memory_reserved(self, device_index: Device = None) -> int:
        """Returns the bytes that Metal allocated for this process now, because no peak is kept."""
        return self.memory_reserved(device_index)

    def total_memory(self, device_index: Device = None) -> int:
        """Returns the number of bytes that Metal recommends not to exceed; the memory is the host's."""
        self.index_of(device_index)
        return int(self._device_module().recommended_max_memory())

    # pinning: the memory is the host's, and torch's pin_memory() raises an error here

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(tuple(shape))

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"  # the device reads it where it is

    def is_bf16_supported(self) -> bool:
        """Returns whether the device computes in bfloat16: from macOS 14 on."""
        import torch

        return bool(torch.backends.mps.is_macos_or_newer(14, 0))

    def is_fp64_supported(self) -> bool:
        """Returns False, because Metal has no float64."""
        return False
