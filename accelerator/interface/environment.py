"""The device's environment: communication, variables, profiler ranges, Triton and the compile backend."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from opforge.errors import CommunicationError, SettingError
from opforge.lazy import cached_property

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping
    from typing import Any, ClassVar

    from opforge.accelerator.amp import DeviceAmp

ONECCL = "oneccl_bindings_for_pytorch"
ITT_COLLECTOR = ("INTEL_LIBITTNOTIFY64", "INTEL_ITTNOTIFY_GROUPS")
"""The variables by which a profiler such as VTune gives ITT its collector. Without them ITT records nothing."""


class Environment(Devices):
    """The part of the interface for the device's environment: communication, variables, profilers, compilers."""

    triton_backend: ClassVar[bool] = False
    """Whether Triton has a backend for this kind of device."""
    _communication_backend: ClassVar[str] = "gloo"
    _communication_package: ClassVar[str] = ""
    """The module whose import registers the backend with torch; empty if torch or the device's package does that."""
    _oneccl: ClassVar[bool] = False
    """Whether oneCCL's bindings for torch are preferred to that backend if they are installed."""
    _default_compile_backend: ClassVar[str] = "inductor"
    _visible_devices: ClassVar[tuple[str, ...]] = ()
    _exported: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self._compile_backend = self._default_compile_backend

    def communication_backend_name(self) -> str:
        """Returns the name that `torch.distributed.init_process_group` takes."""
        return self._backend[0]

    @cached_property
    def _backend(self) -> tuple[str, str]:
        """The backend's name, and the module whose import registers it; that is empty if none has to be imported."""
        if self._oneccl and _is_installed(ONECCL):
            return "ccl", ONECCL
        return self._communication_backend, self._communication_package

    def init_distributed(self, **options: Any) -> None:
        """Starts torch.distributed with the accelerator's backend. Does nothing if a process group exists already.

        `options` are passed to `torch.distributed.init_process_group`, and may name another `backend`. Raises
        CommunicationError if this torch has no torch.distributed or lacks the backend.
        """
        import torch.distributed

        backend = str(options.pop("backend", None) or self.communication_backend_name())
        if not torch.distributed.is_available():
            raise CommunicationError(self.name, backend, "this torch is built without torch.distributed")
        if torch.distributed.is_initialized():
            return
        own, package = self._backend
        try:
            if backend == own and package:
                importlib.import_module(package)
        except ImportError as error:
            raise CommunicationError(self.name, backend, f"its package cannot be imported: {error}") from error
        for _, _, name in (part.rpartition(":") for part in backend.split(",")):  # such as cpu:gloo,cuda:nccl
            if not torch.distributed.is_backend_available(name):
                raise CommunicationError(self.name, name, "this torch has no such backend")
        torch.distributed.init_process_group(backend=backend, **options)

    def is_triton_supported(self) -> bool:
        """Returns whether Triton is installed and compiles for the device."""
        return self.triton_backend and self._triton_is_installed

    @cached_property
    def _triton_is_installed(self) -> bool:
        return _is_installed("triton")

    def prefer_triton_grouped_mm(self) -> bool:
        """Returns whether a grouped matrix product is faster in Triton than with `torch._grouped_mm`."""
        return False

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Calls `callback` once the device is initialised.

        If the device needs no initialisation, the call happens immediately and its result is returned.
        """
        defer = self._device_function("_lazy_call")
        return callback() if defer is None else defer(callback)

    @property
    def supports_nvtx_domain(self) -> bool:
        """Whether `range_push` respects its `domain` and `category`."""
        return False

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Opens a named range in the profiler's timeline: the vendor's profiler, or ITT if torch has it."""
        ranges = self._ranges
        if ranges is not None:
            try:
                ranges.range_push(msg)
            except RuntimeError:  # raised by torch and the vendors if the profiler's library is missing
                pass

    def range_pop(self, domain: str | None = None) -> None:
        """Closes the most recent open range."""
        ranges = self._ranges
        if ranges is not None:
            try:
                ranges.range_pop()
            except RuntimeError:
                pass

    @cached_property
    def _ranges(self) -> Any:
        """An object with `range_push(msg)` and `range_pop()`. None if nothing records ranges."""
        if not any(variable in os.environ for variable in ITT_COLLECTOR):
            return None
        import torch.profiler

        itt: Any = torch.profiler.itt
        return itt if itt.is_available() else None

    def amp(self) -> DeviceAmp:
        """Returns torch.amp for the device: a context in which operations choose their precision (autocast).

        `with accelerator.amp():` is `with torch.amp.autocast(device):`. Its `autocast`, `GradScaler`, `custom_fwd` and
        `custom_bwd` are torch.amp's without the argument for the device, as in `torch.cuda.amp`.
        """
        from opforge.accelerator.amp import DeviceAmp

        return DeviceAmp(self.torch_device)

    def export_envs(self) -> list[str]:
        """Returns the prefixes of the environment variables that a launcher copies to remote processes."""
        return [*self._exported]

    def visible_devices_envs(self) -> list[str]:
        """Returns the environment variables that limit which devices a process may use."""
        return [*self._visible_devices]

    def set_visible_devices_envs(
        self, current_env: MutableMapping[str, str], local_accelerator_ids: Iterable[int | str]
    ) -> None:
        """Writes these device numbers into a process's environment, under each name of `visible_devices_envs`."""
        devices = ",".join(map(str, local_accelerator_ids))
        for variable in self.visible_devices_envs():
            current_env[variable] = devices

    def get_compile_backend(self) -> str:
        """Returns the name of the backend that `torch.compile` should use on this device."""
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        """Chooses the backend of `get_compile_backend`. Raises SettingError, which lists the existing ones."""
        if backend != self._default_compile_backend:  # its package may not have registered the default yet
            import torch._dynamo

            backends = torch._dynamo.list_backends(exclude_tags=())
            if backend not in backends:
                raise SettingError("backend", backend, f"one of torch.compile's backends: {', '.join(backends)}")
        self._compile_backend = backend


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
