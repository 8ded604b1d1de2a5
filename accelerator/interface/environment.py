"""What surrounds the device: communication, the launcher's variables, profiler ranges, Triton, the compile backend."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING

from opforge.errors import CommunicationError, SettingError

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping
    from typing import Any, ClassVar

ONECCL = "oneccl_bindings_for_pytorch"


class Environment(Devices):
    """The part of the interface about the device's surroundings."""

    triton_backend: ClassVar[bool] = False
    """Whether there is a Triton for this kind of device."""
    _communication_backend: ClassVar[str] = "gloo"
    _communication_package: ClassVar[str] = ""
    """The module whose import brings the backend to torch, where it is no part of torch or of the device's package."""
    _oneccl: ClassVar[bool] = False
    """Whether oneCCL's bindings for torch, where they are installed, are taken before that backend."""
    _default_compile_backend: ClassVar[str] = "inductor"
    _visible_devices: ClassVar[tuple[str, ...]] = ()
    _exported: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self._compile_backend = self._default_compile_backend

    def communication_backend_name(self) -> str:
        """Give the name that `torch.distributed.init_process_group` takes."""
        return "ccl" if self._takes_oneccl() else self._communication_backend

    def _communication_module(self) -> str:
        return ONECCL if self._takes_oneccl() else self._communication_package

    def _takes_oneccl(self) -> bool:
        return self._oneccl and _is_installed(ONECCL)

    def init_distributed(self, **options: Any) -> None:
        """Start torch.distributed with the accelerator's backend; a group that runs already is left alone.

        `options` go to `torch.distributed.init_process_group`, and may name another `backend`. CommunicationError
        where this torch has no torch.distributed, or lacks the backend.
        """
        import torch.distributed

        backend = str(options.pop("backend", None) or self.communication_backend_name())
        if not torch.distributed.is_available():
            raise CommunicationError(self.name, backend, "this torch is built without torch.distributed")
        if torch.distributed.is_initialized():
            return
        try:
            if backend == self.communication_backend_name() and self._communication_module():
                importlib.import_module(self._communication_module())
        except ImportError as problem:
            raise CommunicationError(self.name, backend, f"its package cannot be imported: {problem}") from problem
        for _, _, name in (part.rpartition(":") for part in backend.split(",")):  # such as cpu:gloo,cuda:nccl
            if not torch.distributed.is_backend_available(name):
                raise CommunicationError(self.name, name, "this torch has no such backend")
        torch.distributed.init_process_group(backend=backend, **options)

    def is_triton_supported(self) -> bool:
        """Whether Triton is installed and compiles for the device."""
        return self.triton_backend and self._triton_is_installed()

    def _triton_is_installed(self) -> bool:
        return _is_installed("triton")

    def prefer_triton_grouped_mm(self) -> bool:
        """Whether a grouped matrix product is faster in Triton than as `torch._grouped_mm` here."""
        return False

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Call back once the device is set up: at once, and with its result, where there is nothing to set up."""
        later = self._device_function("_lazy_call")
        return callback() if later is None else later(callback)

    @property
    def supports_nvtx_domain(self) -> bool:
        """Whether `range_push` heeds its `domain` and `category`."""
        return False

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Open a named range in the profiler's timeline: the device's own, or ITT's where torch has it."""
        ranges = self._ranges()
        if ranges is not None:
            with suppress(RuntimeError):  # torch's and the makers' way to say that the profiler's library is missing
                ranges.range_push(msg)

    def range_pop(self, domain: str | None = None) -> None:
        """Close the range opened last."""
        ranges = self._ranges()
        if ranges is not None:
            with suppress(RuntimeError):
                ranges.range_pop()

    def _ranges(self) -> Any:
        """Give what has `range_push(msg)` and `range_pop()`, or None where nothing records ranges."""
        import torch.profiler

        itt: Any = torch.profiler.itt
        return itt if itt.is_available() else None

    def export_envs(self) -> list[str]:
        """Give the beginnings of the names of environment variables that a launcher hands to remote processes."""
        return list(self._exported)

    def visible_devices_envs(self) -> list[str]:
        """Give the environment variables that say which devices a process may use."""
        return list(self._visible_devices)

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
        if backend != self._default_compile_backend:  # which its package may not have registered yet
            import torch._dynamo

            known = torch._dynamo.list_backends(exclude_tags=())
            if backend not in known:
                raise SettingError("backend", backend, f"one of torch.compile's backends: {', '.join(known)}")
        self._compile_backend = backend


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
