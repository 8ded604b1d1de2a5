"""Devices: their names, the current one, waiting for them. The part of the interface that every other part needs."""

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
    """The accelerator's name, as the table and OPFORGE_ACCELERATOR know it."""
    torch_device: ClassVar[str]
    """The type of `torch.device` that its tensors live on."""
    synchronous: ClassVar[bool] = False
    """Whether work is finished when the call that asked for it returns."""
    root: str = "/"
    """Where /dev, /proc and /sys are found; tests put made-up ones there."""

    def __init__(self) -> None:
        self._target: Target | None = None
        self._capabilities: Capabilities | None = None

    def _device_module(self) -> Any:
        """Give torch's module for the device, such as `torch.cuda`."""
        import torch

        return torch.get_device_module(self.torch_device)

    def _device_function(self, *names: str) -> Callable[..., Any] | None:
        """Give the first of these that torch's module for the device has, or None: the modules differ."""
        module = self._device_module()
        return next((found for name in names if (found := getattr(module, name, None)) is not None), None)

    def is_synchronized_device(self) -> bool:
        """Whether work is finished when the call that asked for it returns, so that nothing ever needs waiting for."""
        return self.synchronous

    def use_host_timers(self) -> bool:
        """Whether the host's clock times the device's work rightly."""
        return self.is_synchronized_device()

    def resolves_data_dependency(self) -> bool:
        """Whether an operation sees the results of those before it without any synchronisation."""
        return self.is_synchronized_device()

    def handles_memory_backpressure(self) -> bool:
        """Whether memory given up can be reused at once, without waiting for the device."""
        return self.is_synchronized_device()

    def is_available(self) -> bool:
        """Whether this process can use the device now."""
        return bool(self._device_module().is_available())

    def unavailable_reason(self) -> str:
        """Why `is_available` says no, in words; asked only then."""
        return f"torch.{self.torch_device}.is_available() is False"

    def device_name(self, device_index: int | None = None) -> str:
        """Give the string that `torch.device` takes: with a number where one is given, else without."""
        return self.torch_device if device_index is None else f"{self.torch_device}:{device_index}"

    def device(self, device_index: int | None = None) -> AbstractContextManager[Any]:
        """Give a context manager in which the device is the current one."""
        chosen = self._device_function("device")
        if chosen is None:
            from contextlib import nullcontext

            return nullcontext()
        context: AbstractContextManager[Any] = chosen(self.current_device() if device_index is None else device_index)
        return context

    def set_device(self, device_index: int) -> None:
        """Make the device the current one."""
        self._device_module().set_device(device_index)

    def current_device(self) -> int:
        """Give the current device's number."""
        return int(self._device_module().current_device())

    def current_device_name(self) -> str:
        """Give the current device as `torch.device` takes it."""
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        """Give the number of devices that this process may use."""
        return int(self._device_module().device_count())

    def multiprocessor_count(self, device_index: int | None = None) -> int:
        """Returns the number of multiprocessors (AMD: compute units) of the device; 1 if torch does not report it."""
        properties = self._device_function("get_device_properties")
        return 1 if properties is None else int(getattr(properties(device_index), "multi_processor_count", 1))

    def synchronize(self, device_index: int | None = None) -> None:
        """Wait until the device has done all that was asked of it; at once where it is synchronous."""
        if not self.is_synchronized_device():
            self._device_module().synchronize(device_index)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lives on this kind of device."""
        return tensor.device.type == self.torch_device

    def target(self) -> Target:
        """Give what an op must be built for to run on this machine's device. Found once."""
        if self._target is None:
            self._target = self._find_target()
        return self._target

    def _find_target(self) -> Target:
        from opforge.accelerator.target import Target

        return Target(self.name)
