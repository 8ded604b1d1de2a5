"""The accelerators that opforge has and that other packages add, and how one is made from its entry point."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from opforge.errors import AcceleratorUnavailableError, UnknownAcceleratorError

from .entry_points import EntryPoint, entry_points
from .interface.accelerator import INTERFACE_VERSION, Accelerator

GROUP = "opforge.accelerators"
"""The entry-point group through which packages add accelerators: name = "module:Class"."""

BUILT_IN = {
    "npu": "opforge.accelerator.devices.npu:NPUAccelerator",
    "hpu": "opforge.accelerator.devices.hpu:HPUAccelerator",
    "mlu": "opforge.accelerator.devices.mlu:MLUAccelerator",
    "sdaa": "opforge.accelerator.devices.sdaa:SDAAAccelerator",
    "supa": "opforge.accelerator.devices.supa:SUPAAccelerator",
    "klxpu": "opforge.accelerator.devices.klxpu:KLXPUAccelerator",
    "cuda": "opforge.accelerator.devices.cuda:CUDAAccelerator",
    "xpu": "opforge.accelerator.devices.xpu:XPUAccelerator",
    "mps": "opforge.accelerator.devices.mps:MPSAccelerator",
    "cpu": "opforge.accelerator.devices.cpu:CPUAccelerator",
    "null": "opforge.accelerator.devices.null:NullAccelerator",
}
"""opforge's own accelerators, in the order in which they are tried.

Those that need a vendor's package come first, because somebody installed it on purpose. torch_supa and torch_xmlir, for
example, also provide the names of torch.cuda.
"""
ONLY_BY_NAME = frozenset({"null"})
"""Accelerators that are used only if they are named."""
_ACCELERATOR_OF_DEVICE = {"hip": "cuda"}
"""The accelerator's name for a target's device, if the two differ."""


class Attempt(NamedTuple):
    """An attempt to use an accelerator: the accelerator, or why it cannot be used."""

    accelerator: Accelerator | None
    reason: str = ""
    """Empty if there is an accelerator."""
    error: BaseException | None = None
    """The exception that was raised; None if there is none."""


def external() -> list[EntryPoint]:
    """Returns the accelerators that other packages add, sorted by name."""
    return sorted(entry_points(GROUP), key=lambda point: (point.name, point.value, point.source))


def built_in() -> list[EntryPoint]:
    """Returns opforge's own accelerators, in the order in which they are tried."""
    return [EntryPoint(GROUP, name, import_path, "opforge") for name, import_path in BUILT_IN.items()]


def find(name: str, requested_by: str) -> EntryPoint:
    """Returns the accelerator of that name, in any case. Raises UnknownAcceleratorError."""
    by_name = {point.name: point for point in (*reversed(external()), *built_in())}
    point = by_name.get(name) or by_name.get(name.lower())
    if point is None:
        raise UnknownAcceleratorError(name, sorted(by_name), requested_by)
    return point


def make_accelerator(name: str, requested_by: str) -> Accelerator:
    """Makes the accelerator of that name, whether or not its device is present.

    Raises:
        UnknownAcceleratorError: There is no accelerator of that name.
        AcceleratorUnavailableError: The package that adds it is broken.
    """
    point = find(name, requested_by)
    attempt = make(point)
    if attempt.accelerator is None:
        raise AcceleratorUnavailableError(point.name, attempt.reason, requested_by) from attempt.error
    return attempt.accelerator


def accelerator_name(device: str) -> str:
    """Returns the name of the accelerator that serves a target's device: the same, except `cuda` for `hip`."""
    return _ACCELERATOR_OF_DEVICE.get(device, device)


def accelerator_named(device: str) -> Accelerator:
    """Makes the accelerator that serves a target's device, whether or not such a device is present.

    Raises UnknownAcceleratorError and AcceleratorUnavailableError, as `make_accelerator` does.
    """
    return make_accelerator(accelerator_name(device), "the target")


def make_if_available(point: EntryPoint) -> Attempt:
    """Makes the accelerator and probes its device. Nothing is raised: another package's code may raise anything."""
    attempt = make(point)
    return attempt if attempt.accelerator is None else probed(attempt.accelerator, point)


def probed(accelerator: Accelerator, point: EntryPoint) -> Attempt:
    """Probes the device of an accelerator that was made. Nothing is raised."""
    try:
        if accelerator.is_available():
            return Attempt(accelerator)
        reason = accelerator.unavailable_reason()
        no_reason = f"is_available() of {point.value} of {point.source} returns False and unavailable_reason() nothing"
        return Attempt(None, reason or no_reason)
    except (Exception, SystemExit) as raised:  # a package may call sys.exit()
        return Attempt(None, _failure(point, raised), raised)


def make(point: EntryPoint) -> Attempt:
    """Makes the accelerator without probing its device. Nothing is raised."""
    if BUILT_IN.get(point.name, point.value) != point.value:
        return Attempt(None, f"the name {point.name!r} is opforge's own: {point.source} must choose another")
    module, colon, attribute = point.value.partition("[")[0].strip().partition(":")
    if not colon:
        return Attempt(None, f"{point.value!r} of {point.source} names no class: it must be 'module:Class'")
    try:
        factory = getattr(importlib.import_module(module), attribute)
        version = _stated_version(factory)
        if version != INTERFACE_VERSION:
            has = "states no interface_version" if version is None else f"has interface_version {version}"
            return Attempt(None, f"{point.value} of {point.source} {has}: this opforge needs {INTERFACE_VERSION}")
        accelerator = factory()
    except (Exception, SystemExit) as raised:  # a package may call sys.exit() when it is imported
        return Attempt(None, _failure(point, raised), raised)
    if not isinstance(accelerator, Accelerator):
        return Attempt(None, f"{point.value} of {point.source} is not a subclass of opforge.accelerator.Accelerator")
    own_name = getattr(accelerator, "name", None)
    if own_name != point.name:
        problem = f"{point.value} of {point.source} has the name {own_name!r}: its entry point needs the same"
        return Attempt(None, problem)
    return Attempt(accelerator)


def _stated_version(factory: Any) -> object:
    """Returns the interface version that a class, or a base class of its package, states; None if none does.

    What another package's class inherits from one of opforge's does not count: it is this opforge's version, whichever
    the class was written for.
    """
    stating = next((base for base in getattr(factory, "__mro__", ()) if "interface_version" in vars(base)), factory)
    if _is_ours(stating) and not _is_ours(factory):
        return None
    return getattr(stating, "interface_version", None)


def _is_ours(factory: Any) -> bool:
    return str(getattr(factory, "__module__", "")).partition(".")[0] == "opforge"


def _failure(point: EntryPoint, error: BaseException) -> str:
    return f"{point.value} of {point.source} failed: {type(error).__name__}: {error}"
