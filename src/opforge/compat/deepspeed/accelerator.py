"""An accelerator with both interfaces: it is opforge's and also an instance of DeepSpeed's abstract class."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.types import Device

    from opforge.accelerator.interface.accelerator import Accelerator

DEEPSPEEDS = (
    "device",
    "pin_memory",
    "pin_empty",
    "pin_empty_like",
    "is_pinned",
    "unpin_memory",
    "_torch_pins_host_memory",
)
"""Methods that stay DeepSpeed's, if its version has them.

`device` returns what DeepSpeed passes on, such as the `device_id` of torch.distributed: a `torch.device` on most
devices. In the others DeepSpeed counts pinned memory. They pin through the `_torch_` methods, which are opforge's.
"""


def deepspeed_accelerator(name: str, package: Any) -> Any:
    """Returns DeepSpeed's accelerator for the device, which knows its builders; the CPU's if there is none."""
    module_name = f"{package.__name__}.{name}_accelerator"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        return deepspeed_accelerator("cpu", package)
    classes = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module_name]
    return next(kind for kind in classes if issubclass(kind, package.DeepSpeedAccelerator))()


def make_adapter(ours: Accelerator, theirs: Any, interface: type, builders: Mapping[str, Any]) -> Any:
    """Returns `ours` as a DeepSpeedAccelerator (`interface`), which offers `builders` and the other ones of `theirs`.

    Raises TypeError if the interface requires a method that opforge's accelerators do not have.
    """

    def get_op_builder(self: Any, class_name: str) -> Any:
        """Returns the builder class. If neither has one, it is DeepSpeed's class whose `load` says so."""
        builder = builders.get(class_name) or theirs.get_op_builder(class_name)
        return builder or importlib.import_module("deepspeed.ops.op_builder.cpu").NotImplementedBuilder

    def create_op_builder(self: Any, class_name: str) -> Any:
        """Returns a builder of that class."""
        return self.get_op_builder(class_name)()

    def op_builder_dir(self: Any) -> str:
        """Returns the package from which DeepSpeed lists its ops: its own."""
        directory: str = theirs.op_builder_dir()
        return directory

    members = {
        "get_op_builder": get_op_builder,
        "create_op_builder": create_op_builder,
        "op_builder_dir": op_builder_dir,
        "_name": ours.name,
        **_deepspeeds_methods(ours, theirs, interface),
    }
    kind: Any = type(interface)(f"DeepSpeed{type(ours).__name__}", (type(ours), interface), members)
    adapter = object.__new__(kind)
    # Both objects are one accelerator: what is chosen through either, such as the device, must apply to both.
    adapter.__dict__ = ours.__dict__
    return adapter


def _deepspeeds_methods(ours: Accelerator, theirs: Any, interface: type) -> dict[str, Any]:
    """Returns the methods that stay DeepSpeed's, and those that only its accelerator for the device has.

    `theirs` is the CPU's if DeepSpeed does not know the device: then the methods are those of its abstract class.
    """
    if theirs._name != ours.name:

        def device(self: Any, device_index: Device = None) -> torch.device:
            """Returns the device, as DeepSpeed's accelerators for GPUs do."""
            torch_device: torch.device = self._torch.device(self.device_name(device_index))
            return torch_device

        return {**{name: getattr(interface, name) for name in DEEPSPEEDS if hasattr(interface, name)}, "device": device}
    kind = type(theirs)
    only_theirs = [name for name in dir(kind) if name[0] != "_" and not hasattr(type(ours), name)]
    methods = [name for name in only_theirs if inspect.isfunction(getattr(kind, name))]
    return {name: getattr(kind, name) for name in (*DEEPSPEEDS, *methods) if hasattr(kind, name)}
