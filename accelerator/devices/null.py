"""An accelerator that allocates and runs nothing, so that what stands above it is tested without a device.

Its tensors are on torch's `meta` device: shapes and dtypes without memory. It is chosen by name only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.accelerator.interface.accelerator import INTERFACE_VERSION, Accelerator
from opforge.accelerator.interface.rng import OneGenerator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    import torch


class NullAccelerator(OneGenerator, Accelerator):
    """One device with no memory that does nothing at once."""

    name = "null"
    torch_device = "meta"
    synchronous = True
    interface_version = INTERFACE_VERSION

    def __init__(self) -> None:
        super().__init__()
        self._device = 0
        self._generator: torch.Generator | None = None

    def _device_module(self) -> Any:
        """Give an empty module: torch has none for a device that is not there."""
        from types import SimpleNamespace

        return SimpleNamespace()

    def is_available(self) -> bool:
        """Whether the null accelerator can be used: always."""
        return True

    def device_name(self, device_index: int | None = None) -> str:
        """Give `meta`, what `torch.device` takes for tensors without memory."""
        return "meta"

    def device(self, device_index: int | None = None) -> AbstractContextManager[Any]:
        """Give a context manager in which `current_device` is this number."""
        from opforge.accelerator.fallback.device_scope import device_scope

        return device_scope(self, device_index)

    def set_device(self, device_index: int) -> None:
        """Make `current_device` this number."""
        self._device = int(device_index)

    def current_device(self) -> int:
        """Give the number that was set, else 0."""
        return self._device

    def device_count(self) -> int:
        """Give 1."""
        return 1

    def default_generator(self, device_index: int | None = None) -> torch.Generator:
        """Give a generator of its own: seeding it leaves the host's alone."""
        if self._generator is None:
            import torch

            self._generator = torch.Generator()
        return self._generator

    def manual_seed(self, seed: int) -> torch.Generator | None:
        """Seed its generator, and give it."""
        return self.default_generator().manual_seed(seed)

    def total_memory(self, device_index: int | None = None) -> int:
        """Give 0: there is no memory."""
        return 0

    def is_bf16_supported(self) -> bool:
        """Whether it takes bfloat16: it computes nothing in any dtype equally well."""
        return True

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Call back at once, and give the result."""
        return callback()

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(tuple(shape), device="meta")
