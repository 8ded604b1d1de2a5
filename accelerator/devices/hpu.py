"""Intel's Gaudi devices, by the Habana bridge. A process has one device, whatever its number."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opforge.accelerator.vendors.vendor import Vendor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    import torch


class HPUAccelerator(Vendor):
    """One Gaudi. Streams keep the order of the program among them, and the bridge waits when memory is short."""

    name = torch_device = "hpu"
    package = "habana_frameworks.torch.hpu"
    device_files = "dev/accel/accel_controlD[0-9]*"
    hiding = ()
    _default_compile_backend = "hpu_backend"
    _communication_backend = "hccl"
    _communication_package = "habana_frameworks.torch.distributed.hccl"
    _visible_devices = ("HABANA_VISIBLE_MODULES",)
    _exported = ("HABANA_", "HCCL_", "PT_HPU_")

    def __init__(self) -> None:
        super().__init__()
        self._captures = 0

    def resolves_data_dependency(self) -> bool:
        """Give True: an operation sees the results of those before it, on any stream."""
        return True

    def handles_memory_backpressure(self) -> bool:
        """Give True: the bridge takes no more work until there is memory for it."""
        return True

    def device_name(self, device_index: int | None = None) -> str:
        """Give `hpu`: the process's one device has the number 0, whichever module it is."""
        return "hpu"

    def synchronize(self, device_index: int | None = None) -> None:
        """Wait until the device has done all that was asked of it."""
        self._device_module().synchronize()

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """Put the generator into a state that `get_rng_state` gave."""
        self._device_module().random.set_rng_state(new_state)

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """Give the generator's state: a one-dimensional uint8 tensor in host memory."""
        state: torch.Tensor = self._device_module().random.get_rng_state()
        return state

    def default_generator(self, device_index: int | None = None) -> torch.Generator:
        """Give the device's own generator."""
        generator: torch.Generator = self._device_module().random.default_generators[0]
        return generator

    def current_stream(self, device_index: int | None = None) -> Any:
        """Give the stream that work is queued on now."""
        return self._device_module().current_stream()

    def default_stream(self, device_index: int | None = None) -> Any:
        """Give the stream that is current where no other was chosen."""
        return self._device_module().default_stream()

    def is_current_stream_capturing(self) -> bool:
        """Whether what is asked for now goes into a graph."""
        return self._captures > 0 if self._graph_class() is not None else super().is_current_stream_capturing()

    @contextmanager
    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> Iterator[Any]:
        """Give a context manager whose body goes into the graph; the bridge has graphs in lazy mode, and no pools."""
        if self._graph_class() is None:
            with super().capture_to_graph(graph):
                yield
            return
        self._captures += 1  # the bridge itself does not tell
        try:
            with self._device_module().graph(graph, stream=stream):
                yield
        finally:
            self._captures -= 1

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        """Give the bridge's counters by its names (`Limit`, `InUse`, ...) and the chief ones by torch's too."""
        stats = dict(self._device_module().memory_stats(device_index))
        return {
            **stats,
            "allocated_bytes.all.current": stats["InUse"],
            "allocated_bytes.all.peak": stats["MaxInUse"],
            "reserved_bytes.all.current": stats["Limit"],
            "reserved_bytes.all.peak": stats["Limit"],
        }

    def total_memory(self, device_index: int | None = None) -> int:
        """Give the bytes that the bridge may take."""
        return int(self.memory_stats(device_index)["Limit"])

    def is_fp16_supported(self) -> bool:
        """Whether the device computes in float16: Gaudi 2 and later."""
        return bool(importlib.import_module("habana_frameworks.torch.utils.experimental")._is_fp16_supported())

    def is_fp64_supported(self) -> bool:
        """Give False: float64 goes through the host."""
        return False

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory("hpu")

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return self._torch_pin_memory(tensor.new_empty(tuple(shape)))  # the allocation itself takes no device's name
