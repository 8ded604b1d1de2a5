"""An accelerator of DeepSpeed's hierarchy as one of opforge's: `opforge.set_accelerator(MyDeepSpeedAccelerator())`."""

from __future__ import annotations

import inspect
from typing import Any

from opforge.accelerator import registry
from opforge.accelerator.interface.accelerator import INTERFACE_VERSION, Accelerator

DEEPSPEEDS = "deepspeed.accelerator."
"""The modules of DeepSpeed's own accelerators. What they define is opforge's, where opforge has the device."""
OPFORGES = {"device", "op_builder_dir", "create_op_builder", "get_op_builder"}
"""Names whose results differ from DeepSpeed's in kind: the context manager, and builders with a target."""


def own_accelerator(theirs: Any) -> Accelerator:
    """Returns an accelerator of opforge's that has what the class of `theirs` defines, and all else from opforge.

    The builders that only `theirs` has are offered too.
    """
    name = theirs._name
    base = _class_for(name)
    members: dict[str, Any] = {
        member: _delegated(theirs, member)
        for member in dir(theirs)
        if member[0] != "_" and member not in OPFORGES and _is_own(type(theirs), member, base is not Accelerator)
    }

    def get_op_builder(self: Any, class_name: str) -> Any:
        """Returns opforge's builder class of that name, or DeepSpeed's. None if neither has one."""
        found: Any = base.get_op_builder(self, class_name)
        kind = theirs.get_op_builder(class_name) if found is None else found
        return None if getattr(kind, "__name__", "") == "NotImplementedBuilder" else kind

    members |= {"get_op_builder": get_op_builder, "__module__": type(theirs).__module__}
    if base is Accelerator:
        device = str(theirs.device_name()).partition(":")[0]
        synchronous = bool(theirs.is_synchronized_device())
        members |= {"name": name, "torch_device": device, "synchronous": synchronous}
        members["interface_version"] = INTERFACE_VERSION
    accelerator: Accelerator = type(f"Own{type(theirs).__name__}", (base,), members)()
    return accelerator


def _class_for(name: str) -> type[Accelerator]:
    """Returns opforge's own class for the device, or `Accelerator` if it has none."""
    if name not in registry.BUILT_IN:
        return Accelerator
    return type(registry.make_accelerator(name, "the program"))


def _is_own(kind: type, name: str, opforge_has_device: bool) -> bool:
    """Returns whether a member is of the user's own class, and not DeepSpeed's."""
    defining = next(base for base in kind.__mro__ if name in vars(base)) if hasattr(kind, name) else kind
    if not hasattr(Accelerator, name):
        return inspect.isroutine(getattr(kind, name, None)) and not defining.__module__.startswith(DEEPSPEEDS)
    if defining.__name__ == "DeepSpeedAccelerator":
        return False  # a default
    return not (opforge_has_device and defining.__module__.startswith(DEEPSPEEDS))


def _delegated(theirs: Any, name: str) -> Any:
    """Returns a member that asks `theirs`: a property for a property, else a method."""
    if isinstance(inspect.getattr_static(type(theirs), name, None), property):
        return property(lambda self: getattr(theirs, name), doc=f"DeepSpeed's {name}.")

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(theirs, name)(*args, **options)

    method.__name__, method.__doc__ = name, getattr(theirs, name).__doc__
    return method
