"""Host memory that is page-locked, so that a device copies from it and to it directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.errors import SettingError

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class Pinning(Devices):
    """The pinning part of the interface, over torch's own pinning. A device that needs none overrides that."""

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(tuple(shape), pin_memory=True)

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        """Give page-locked memory like the tensor's.

        With `make_copy` it holds the tensor's values. Without, the tensor only lends its size and dtype, and the
        contents are undefined; the shape is then the tensor's, or flat where `match_shape` is false.
        """
        if make_copy:
            return self._torch_pin_memory(tensor)
        return self._torch_empty_pinned(tensor, tensor.shape if match_shape else (tensor.numel(),))

    def pin_empty(
        self, *size: int | Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        """Give page-locked memory of this shape (numbers, or one sequence of them); its contents are undefined."""
        import torch

        _require_host(device)
        first = size[0] if len(size) == 1 else None
        shape = tuple(size if first is None or isinstance(first, int) else first)
        return self._torch_empty_pinned(torch.empty(0, dtype=dtype), [int(length) for length in shape])  # type: ignore[arg-type]

    def pin_empty_like(
        self, tensor: torch.Tensor, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Give page-locked memory of the tensor's shape, and its dtype unless another is given; contents undefined."""
        return self.pin_empty(tensor.shape, dtype=tensor.dtype if dtype is None else dtype, device=device)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory is page-locked."""
        return bool(self._torch_is_pinned(tensor))

    def unpin_memory(self, tensor: torch.Tensor) -> None:
        """Do nothing: torch unlocks its memory when the tensor goes. For accelerators that pin by other means."""

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Page-lock `num_bytes` bytes from `address` on for the device; False: it needs or does no such thing."""
        return False

    def unregister_host_memory(self, address: int) -> None:
        """Undo `register_host_memory`; nothing where that did nothing."""

    def pin_memory_alignment(self) -> int:
        """Give the bytes that the address and size of registered memory must be multiples of; 1: any will do."""
        return 1


def _require_host(device: str | torch.device) -> None:
    import torch

    try:
        on_host = torch.device(device).type == "cpu"
    except RuntimeError:
        on_host = False
    if not on_host:
        raise SettingError("device", str(device), "'cpu': only the host's memory can be page-locked")
