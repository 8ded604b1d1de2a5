"""Devices: their names, the current one, and synchronisation. Every other part of the interface builds on this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, ClassVar

    import torch

    from opforge.accelerator.capabilities import Capabilities
    from opforge.accelerator.target import Target


class Devices:
    """The device part of the interface, over `torch.get_device_module(torch_device)`.

    `device_index` is a number from 0, or None for the current device.
    """

    name: ClassVar[str]
    """The accelerator's name, as in the registry and in OPFORGE_ACCELERATOR."""
    torch_device: ClassVar[str]
    """The type of `torch.device` that its tensors live on."""
    synchronous: ClassVar[bool] = False
    """Whether work is finished when the call that started it returns."""
    root: str = "/"
    """The folder that holds /dev, /proc and /sys; tests replace it."""

    def __init__(self) -> None:
        self._target: Target | None = None
        self._capabilities: Capabilities | None = None

    def _device_module(self) -> Any:
        """Returns torch's module for the device, such as `torch.cuda`."""
        import torch

        return torch.get_device_module(self.torch_device)

    def _device_function(self, *names: str) -> Callable[..., Any] | None:
        """Returns the first of these functions that torch's module for the device has, because modules differ.

        None if it has none of them.
        """
        module = self._device_module()
        return next((function for name in names if (function := getattr(module, name, None)) is not None), None)

    def is_synchronized_device(self) -> bool:
        """Returns whether work is finished when the call that started it returns, so that nothing needs waiting for."""
        return self.synchronous

    def use_host_timers(self) -> bool:
        """Returns whether the host's clock measures the device's work correctly."""
        return self.is_synchronized_device()

    def resolves_data_dependency(self) -> bool:
        """Returns whether an operation sees the results of earlier ones without synchronisation."""
        return self.is_synchronized_device()

    def handles_memory_backpressure(self) -> bool:
        """Returns whether freed memory can be reused immediately, without waiting for the device."""
        return self.is_synchronized_device()

    def is_available(self) -> bool:
        """Returns whether this process can use the device now."""
        return bool(self._device_module().is_available())

    def unavailable_reason(self) -> str:
        """Returns why `is_available` is False, in words. Called only in that case."""
        return f"torch.{self.torch_device}.is_available() is False"

    def device_name(self, device_index: int | None = None) -> str:
        """Returns the string that `torch.device` takes, with the device's number unless it is None."""
        return self.torch_device if device_index is None else f"{self.torch_device}:{device_index}"

    def device(self, device_index: int | None = None) -> AbstractContextManager[Any]:
        """Returns a context manager in which the device is the current one."""
        device_class = self._device_function("device")
        if device_class is None:
            from contextlib import nullcontext

            return nullcontext()
        index = self.current_device() if device_index is None else device_index
        context: AbstractContextManager[Any] = device_class(index)
        return context

    def set_device(self, device_index: int) -> None:
        """Makes the device the current one."""
        self._device_module().set_device(device_index)

    def current_device(self) -> int:
        """Returns the current device's number."""
        return int(self._device_module().current_device())

    def current_device_name(self) -> str:
        """Returns the current device as `torch.device` takes it."""
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        """Returns the number of devices that this process may use."""
        return int(self._device_module().device_count())

    def multiprocessor_count(self, device_index: int | None = None) -> int:
        """Returns the number of multiprocessors (AMD: compute units) of the device; 1 if torch does not report it."""
        properties = self._device_function("get_device_properties")
        return 1 if properties is None else int(getattr(properties(device_index), "multi_processor_count", 1))

    def synchronize(self, device_index: int | None = None) -> None:
        """Waits until the device has finished all its work. Returns immediately if the device is synchronous."""
        if not self.is_synchronized_device():
            self._device_module().synchronize(device_index)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Returns whether the tensor lives on this kind of device."""
        return tensor.device.type == self.torch_device

    def target(self) -> Target:
        """Returns what an op must be built for to run on this machine's devices; the first call probes them."""
        if self._target is None:
            self._target = self._find_target()
        return self._target

    def _find_target(self) -> Target:
        from opforge.accelerator.target import Target

        return Target(self.name)
