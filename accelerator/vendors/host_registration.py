"""Page-locking host memory by a runtime library whose functions are those of CUDA's under the vendor's prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.accelerator.interface.accelerator import Pinning

if TYPE_CHECKING:
    from typing import ClassVar


class HostRegistration(Pinning):
    """The pinning part of the interface for torch modules such as `torch.cuda`, with `cudart` and `check_error`."""

    runtime_prefix: ClassVar[str]
    """Prefix of the names of the runtime's functions, such as `cuda`."""

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Page-locks the memory for all devices, and returns True. Raises torch's error for the device if it fails."""
        self._call_runtime("HostRegister", address, num_bytes, 0)
        return True

    def unregister_host_memory(self, address: int) -> None:
        """Reverts `register_host_memory`. Raises torch's error for the device if it fails."""
        self._call_runtime("HostUnregister", address)

    def _call_runtime(self, name: str, *arguments: int) -> None:
        module = self._device_module()
        runtime = getattr(module, f"{self.runtime_prefix}rt")()
        module.check_error(int(getattr(runtime, f"{self.runtime_prefix}{name}")(*arguments)))
