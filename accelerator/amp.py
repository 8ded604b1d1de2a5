"""torch.amp for one kind of device."""

from __future__ import annotations

from contextlib import ContextDecorator, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    import torch


class DeviceAmp(ContextDecorator):
    """Mixed precision on a device: a context manager and decorator, with torch.amp's functions for the device."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self._scopes: list[AbstractContextManager[Any]] = []

    def autocast(
        self, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> AbstractContextManager[Any]:
        """Returns `torch.amp.autocast` for the device. It changes nothing if torch casts nothing there (`meta`)."""
        import torch

        if not torch.amp.is_autocast_available(self.device_type):
            return nullcontext()
        return torch.amp.autocast(self.device_type, dtype, enabled, cache_enabled)

    def GradScaler(self, *arguments: Any, **options: Any) -> torch.amp.GradScaler:
        """Returns a `torch.amp.GradScaler` for the device. The arguments are those after `device`."""
        import torch

        return torch.amp.GradScaler(self.device_type, *arguments, **options)

    def custom_fwd(self, fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None) -> Any:
        """Decorates the `forward` of an autograd function, as `torch.amp.custom_fwd`."""
        import torch

        return torch.amp.custom_fwd(fwd, device_type=self.device_type, cast_inputs=cast_inputs)

    def custom_bwd(self, bwd: Callable[..., Any] | None = None) -> Any:
        """Decorates the `backward` of an autograd function, as `torch.amp.custom_bwd`."""
        import torch

        return torch.amp.custom_bwd(bwd, device_type=self.device_type)

    def __enter__(self) -> DeviceAmp:
        scope = self.autocast()
        scope.__enter__()
        self._scopes.append(scope)
        return self

    def __exit__(self, *error: Any) -> None:
        self._scopes.pop().__exit__(*error)
