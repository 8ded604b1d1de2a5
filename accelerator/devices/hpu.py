"""Intel's Gaudi devices, through the Habana bridge. A process has one device, whatever its number."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opforge.accelerator.vendors.vendor import Vendor
from opforge.foundation.lazy import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    import torch
    from torch.types import Device


class HPUAccelerator(Vendor):
    """A device is one Gaudi. Its streams keep the program's order, and the bridge waits when memory is short."""

    name = torch_device = "hpu"
    index_is_rank = True
    package = "habana_frameworks.torch.hpu"
    device_files = "dev/accel/accel_controlD[0-9]*"
    hiding_values = ()
    _default_compile_backend = "hpu_backend"
    _communication_backend = "hccl"
    _communication_package = "habana_frameworks.torch.distributed.hccl"
    _visible_devices = ("HABANA_VISIBLE_MODULES",)
    _exported = ("HABANA_", "HCCL_", "PT_HPU_")

    def __init__(self) -> None:
        super().__init__()
        self._captures = 0

    def resolves_data_dependency(self) -> bool:
        """Returns True: an operation sees the results of earlier ones, on any stream."""
        return True

    def handles_memory_backpressure(self) -> bool:
        """Returns True: the bridge accepts no more work until there is memory for it."""
        return True

    def device_name(self, device_index: Device = None) -> str:
        """Returns `hpu`: the process's one device has the number 0, whichever module it is."""
        return "hpu"

    def synchronize(self, device_index: Device = None, *, device: Device = None) -> None:
        """Waits until the device has finished all its work."""
        self._device_module().synchronize()

    def set_rng_state(self, new_state: torch.Tensor, device_index: Device = None) -> None:
        """Sets the generator's state to one that `get_rng_state` returned."""
        self._device_module().random.set_rng_state(new_state)

    def get_rng_state(self, device_index: Device = None) -> torch.Tensor:
        """Returns the generator's state: a one-dimensional uint8 tensor in host memory."""
        state: torch.Tensor = self._device_module().random.get_rng_state()
        return state

    def default_generator(self, device_index: Device = None) -> torch.Generator:
        """Returns the device's default generator."""
        generator: torch.Generator = self._device_module().random.default_generators[0]
        return generator

    def current_stream(self, device_index: Device = None) -> Any:
        """Returns the stream that new work is queued on."""
        return self._device_module().current_stream()

    def default_stream(self, device_index: Device = None) -> Any:
        """Returns the stream that is current if no other was chosen."""
        return self._device_module().default_stream()

    def is_current_stream_capturing(self) -> bool:
        """Returns whether new work is captured into a graph."""
        return self._captures > 0 if self._captures_graphs() else super().is_current_stream_capturing()

    @contextmanager
    def capture_to_graph(
        self, graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str | None = None
    ) -> Iterator[Any]:
        """Returns a context manager that captures the work of its body into the graph.

        The bridge captures graphs only in lazy mode, and ignores `pool` and `capture_error_mode`.
        """
        if not self._captures_graphs():
            with super().capture_to_graph(graph):
                yield
            return
        self._captures += 1  # the bridge has no function that reports a capture
        try:
            with self._device_module().graph(graph, stream=stream):
                yield
        finally:
            self._captures -= 1

    def memory_stats(self, device_index: Device = None) -> dict[str, Any]:
        """Returns the bridge's counters by its names (`Limit`, `InUse`, ...), and the main ones by torch's names."""
        stats = dict(self._device_module().memory_stats(self.index_of(device_index)))
        return {
            **stats,
            "allocated_bytes.all.current": stats["InUse"],
            "allocated_bytes.all.peak": stats["MaxInUse"],
            "reserved_bytes.all.current": stats["Limit"],
            "reserved_bytes.all.peak": stats["Limit"],
        }

    def total_memory(self, device_index: Device = None) -> int:
        """Returns the bytes that the bridge may use."""
        return int(self.memory_stats(device_index)["Limit"])

    def is_fp16_supported(self) -> bool:
        """Returns whether the device computes in float16: from Gaudi 2 on."""
        return self._has_fp16

    @cached_property
    def _has_fp16(self) -> bool:
        return bool(importlib.import_module("habana_frameworks.torch.utils.experimental")._is_fp16_supported())

    def is_fp64_supported(self) -> bool:
        """Returns False, because float64 is computed on the host."""
        return False

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory("hpu")

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return self._torch_pin_memory(tensor.new_empty(tuple(shape)))  # new_empty cannot pin for a named device
