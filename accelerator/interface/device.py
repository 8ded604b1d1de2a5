"""Devices: their names, the current one, and synchronisation. Every other part of the interface builds on this one."""

from __future__ import annotations

from operator import index as whole_number
from typing import TYPE_CHECKING, cast

from opforge.errors import SettingError
from opforge.lazy import cached_property

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import ModuleType
    from typing import Any, ClassVar, SupportsIndex

    import torch
    from torch.types import Device

    from opforge.accelerator.capabilities import Capabilities
    from opforge.accelerator.target import Target


class Devices:
    """The device part of the interface, over `torch.get_device_module(torch_device)`.

    `device_index` is a number from 0, also as text (`LOCAL_RANK`), or a `torch.device` or its name (`cuda:1`). None and
    a `torch.device` without a number mean the current device. SettingError is raised if there is no such device.

    What cannot change while the process runs is looked up once and kept in the object: programs call some of these
    methods in every step.
    """

    name: ClassVar[str]
    """The accelerator's name, as in the registry and in OPFORGE_ACCELERATOR."""
    torch_device: ClassVar[str]
    """The type of `torch.device` that its tensors live on."""
    synchronous: ClassVar[bool] = False
    """Whether work is finished when the call that started it returns."""
    index_is_rank: ClassVar[bool] = False
    """Whether a device's number only tells processes on a machine apart, so that every number from 0 is accepted."""
    root: str = "/"
    """The folder that holds /dev, /proc and /sys; tests replace it."""

    def __init__(self) -> None:
        self._target: Target | None = None
        self._capabilities: Capabilities | None = None
        self._indices: dict[Device, int | None] = {}

    @cached_property
    def _torch(self) -> ModuleType:
        """The module `torch`: an attribute costs less than an import in every call, and a hit imports no torch."""
        import torch

        return torch

    def _device_module(self) -> Any:
        """Returns torch's module for the device, such as `torch.cuda`."""
        return self._torch.get_device_module(self.torch_device)

    def _device_function(self, *names: str) -> Callable[..., Any] | None:
        """Returns the first of these functions that torch's module for the device has, because modules differ.

        None if it has none of them.
        """
        module = self._device_module()
        for name in names:
            function: Callable[..., Any] | None = getattr(module, name, None)
            if function is not None:
                return function
        return None

    def _number(self, device_index: Device) -> int | None:
        """Returns a device's number, whether or not it exists. None stands for the current device.

        Opens no device. Raises SettingError for a negative number and for another kind of device.
        """
        if device_index is None:
            return None
        number: int | None
        device_type = self.torch_device
        try:
            if isinstance(device_index, int) or (isinstance(device_index, str) and device_index.isdecimal()):
                number = int(device_index)
            elif isinstance(device_index, str):
                device_type, colon, digits = device_index.partition(":")
                number = int(digits) if colon else None
            elif isinstance(device_index, self._torch.device):
                device_type, number = device_index.type, device_index.index
            else:
                number = whole_number(cast("SupportsIndex", device_index))
        except (TypeError, ValueError):
            raise self._not_a_device(device_index) from None
        if device_type != self.torch_device or (number is not None and number < 0):
            raise self._not_a_device(device_index)
        return number

    def index_of(self, device_index: Device) -> int | None:
        """Returns the number of an existing device, for methods that take one. None stands for the current device.

        Raises SettingError if there is no such device.
        """
        if device_index is None:
            return None
        try:
            return self._indices[device_index]
        except (KeyError, TypeError):  # TypeError: a list, for example
            number = self._number(device_index)
        if not (number is None or self.index_is_rank):
            count = self.device_count()
            if number >= count:
                raise self._not_a_device(
                    device_index, f"a number below {count}, the number of {self.name} devices here"
                )
        self._indices[device_index] = number
        return number

    def _not_a_device(self, device_index: object, expected: str = "") -> SettingError:
        expected = expected or f"a number from 0 on, or a torch.device of type {self.torch_device!r}"
        return SettingError("device_index", device_index, expected)

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

    def device_name(self, device_index: Device = None) -> str:
        """Returns the string that `torch.device` takes, with the device's number unless it is None.

        Whether the device exists is not checked, because that could open it.
        """
        number = self._number(device_index)
        return self.torch_device if number is None else f"{self.torch_device}:{number}"

    def device(self, device_index: Device = None) -> AbstractContextManager[Any]:
        """Returns a context manager in which the device is the current one."""
        index, device_class = self.index_of(device_index), self._device_function("device")
        if device_class is None:
            from contextlib import nullcontext

            return nullcontext()
        if index is None:
            index = self.current_device()
        context: AbstractContextManager[Any] = device_class(index)
        return context

    def set_device(self, device_index: Device) -> None:
        """Makes the device the current one. Raises SettingError if it does not exist.

        A device without a number is also an error, unless `index_is_rank`: then it changes nothing.
        """
        index = self.index_of(device_index)
        if index is not None:
            self._device_module().set_device(index)
        elif not self.index_is_rank:
            raise self._not_a_device(device_index, "a device with its number")

    def current_device(self) -> int:
        """Returns the current device's number."""
        return int(self._device_module().current_device())

    def current_device_name(self) -> str:
        """Returns the current device as `torch.device` takes it."""
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        """Returns the number of devices that this process may use."""
        return int(self._device_module().device_count())

    def multiprocessor_count(self, device_index: Device = None) -> int:
        """Returns the number of multiprocessors (AMD: compute units) of the device; 1 if torch does not report it."""
        index, properties = self.index_of(device_index), self._device_function("get_device_properties")
        return 1 if properties is None else int(getattr(properties(index), "multi_processor_count", 1))

    def device_arch(self, device_index: Device = None) -> str:
        """Returns the architecture of the device as targets name it; empty if those here differ and it is unknown."""
        self.index_of(device_index)  # raises SettingError for a device that does not exist
        arch = self.target().arch
        return arch[0] if len(arch) == 1 else ""

    def synchronize(self, device_index: Device = None) -> None:
        """Waits until the device has finished all its work. Returns immediately if the device is synchronous."""
        if not self.is_synchronized_device():
            self._device_module().synchronize(self.index_of(device_index))

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
