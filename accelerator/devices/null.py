"""An accelerator that allocates and runs nothing, to test the code above it without a device.

Its tensors are on torch's `meta` device: they have shapes and dtypes, and no memory. It is used only if it is named.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from opforge.accelerator.interface.accelerator import INTERFACE_VERSION, Accelerator, OneGenerator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    import torch
    from torch.types import Device


class NullAccelerator(OneGenerator, Accelerator):
    """One device without memory, on which every operation finishes immediately."""

    name = "null"
    torch_device = "meta"
    synchronous = index_is_rank = True
    interface_version = INTERFACE_VERSION

    def __init__(self) -> None:
        super().__init__()
        self._device = 0
        self._no_module = SimpleNamespace()
        self._generator: torch.Generator | None = None

    def _device_module(self) -> Any:
        """Returns an empty module, because torch has none for `meta`."""
        return self._no_module

    def is_available(self) -> bool:
        """Returns True: it can always be used."""
        return True

    def device_name(self, device_index: Device = None) -> str:
        """Returns `meta`, which `torch.device` takes for tensors without memory."""
        return "meta"

    def device(self, device_index: Device = None) -> AbstractContextManager[Any]:
        """Returns a context manager in which `current_device` is this number."""
        from opforge.accelerator.fallback.device_scope import device_scope

        return device_scope(self, self.index_of(device_index))

    def set_device(self, device_index: Device) -> None:
        """Makes this number the result of `current_device`. A torch.device without a number changes nothing."""
        if (index := self.index_of(device_index)) is not None:
            self._device = index

    def current_device(self) -> int:
        """Returns the number that was set, else 0."""
        return self._device

    def device_count(self) -> int:
        """Returns 1."""
        return 1

    def default_generator(self, device_index: Device = None) -> torch.Generator:
        """Returns a generator of its own, so that seeding it does not seed the host's."""
        if self._generator is None:
            import torch

            self._generator = torch.Generator()
        return self._generator

    def manual_seed(self, seed: int) -> torch.Generator | None:
        """Seeds its generator, and returns it."""
        return self.default_generator().manual_seed(seed)

    def total_memory(self, device_index: Device = None) -> int:
        """Returns 0, because there is no memory."""
        return 0

    def is_bf16_supported(self) -> bool:
        """Returns True: nothing is computed, so every dtype works."""
        return True

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Calls `callback` immediately, and returns its result."""
        return callback()

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(tuple(shape), device="meta")
