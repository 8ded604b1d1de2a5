"""One accelerator as both kinds: an object that is opforge's and, by isinstance and by its methods, DeepSpeed's."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opforge.accelerator.interface.accelerator import Accelerator

PINNING = ("pin_memory", "pin_empty", "pin_empty_like", "is_pinned", "unpin_memory", "_torch_pins_host_memory")
"""Left to DeepSpeed, which keeps an account of pinned memory; it does the work through the `_torch_` methods, ours.
What a version of DeepSpeed has not is ours too."""


def their_accelerator(name: str, place: Any) -> Any:
    """DeepSpeed's own accelerator for the device, which has its builders; that of the CPU where it has none."""
    module = f"{place.__name__}.{name}_accelerator"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return their_accelerator("cpu", place)
    kinds = [one for one in vars(found).values() if isinstance(one, type) and one.__module__ == module]
    return next(kind for kind in kinds if issubclass(kind, place.DeepSpeedAccelerator))()


def adapted(ours: Accelerator, theirs: Any, interface: type, builders: Mapping[str, Any]) -> Any:
    """Give `ours` as a DeepSpeedAccelerator (`interface`) that offers `builders` and else those of `theirs`.

    TypeError where the interface asks for a method that opforge's accelerators do not have.
    """

    def get_op_builder(self: Any, class_name: str) -> Any:
        """Give the builder class; where neither has one, DeepSpeed's that says so when it is loaded."""
        found = builders.get(class_name) or theirs.get_op_builder(class_name)
        return found or importlib.import_module("deepspeed.ops.op_builder.cpu").NotImplementedBuilder

    def create_op_builder(self: Any, class_name: str) -> Any:
        """Give a builder of that class."""
        return self.get_op_builder(class_name)()

    def op_builder_dir(self: Any) -> str:
        """Give the package from which DeepSpeed lists its ops: its own."""
        directory: str = theirs.op_builder_dir()
        return directory

    def set_device(self: Any, device_index: Any) -> None:
        """Make the device the current one, given by its number or, as ZeRO's stage 3 does, as a torch.device."""
        import torch

        number = device_index.index if isinstance(device_index, torch.device) else device_index
        if number is not None:
            ours.set_device(number)

    members = {
        "set_device": set_device,
        "get_op_builder": get_op_builder,
        "create_op_builder": create_op_builder,
        "op_builder_dir": op_builder_dir,
        "_name": ours.name,
        **{name: getattr(type(theirs), name) for name in PINNING if hasattr(type(theirs), name)},
    }
    kind: Any = type(interface)(f"DeepSpeed{type(ours).__name__}", (type(ours), interface), members)
    adapter = object.__new__(kind)
    # Seen through two interfaces it is one accelerator: what is chosen through either, such as the device, holds.
    adapter.__dict__ = ours.__dict__
    return adapter
