"""What surrounds the device: communication, the launcher's variables, profiler ranges, Triton, the compile backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.errors import SettingError

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping
    from typing import Any, ClassVar


class Environment(Devices):
    """The part of the interface about the device's surroundings."""

    supports_nvtx_domain: ClassVar[bool] = False
    """Whether `range_push` heeds its `domain` and `category`."""
    _communication_backend: ClassVar[str] = "gloo"

    def __init__(self) -> None:
        super().__init__()
        self._compile_backend = "inductor"

    def communication_backend_name(self) -> str:
        """Give the name that `torch.distributed.init_process_group` takes."""
        return self._communication_backend

    def is_triton_supported(self) -> bool:
        """Whether Triton compiles for the device."""
        return False

    def prefer_triton_grouped_mm(self) -> bool:
        """Whether a grouped matrix product is faster in Triton than as `torch._grouped_mm` here."""
        return False

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Call back once the device is set up: at once, and with its result, where there is nothing to set up."""
        later = self._device_function("_lazy_call")
        return callback() if later is None else later(callback)

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Open a named range in the profiler's timeline, by ITT where torch has it; else do nothing."""
        itt = _itt()
        if itt is not None:
            itt.range_push(msg)

    def range_pop(self, domain: str | None = None) -> None:
        """Close the range opened last."""
        itt = _itt()
        if itt is not None:
            itt.range_pop()

    def export_envs(self) -> list[str]:
        """Give the beginnings of the names of environment variables that a launcher hands to remote processes."""
        return []

    def visible_devices_envs(self) -> list[str]:
        """Give the environment variables that say which devices a process may use."""
        return []

    def set_visible_devices_envs(
        self, current_env: MutableMapping[str, str], local_accelerator_ids: Iterable[int | str]
    ) -> None:
        """Write these device numbers into a process's environment, under each name of `visible_devices_envs`."""
        devices = ",".join(str(number) for number in local_accelerator_ids)
        for variable in self.visible_devices_envs():
            current_env[variable] = devices

    def get_compile_backend(self) -> str:
        """Give the name of the backend that `torch.compile` should use on this device."""
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        """Choose that backend; SettingError lists those that exist."""
        import torch._dynamo

        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise SettingError("backend", backend, f"one of torch.compile's backends: {', '.join(known)}")
        self._compile_backend = backend


def _itt() -> Any:
    import torch.profiler

    itt: Any = torch.profiler.itt
    return itt if itt.is_available() else None
