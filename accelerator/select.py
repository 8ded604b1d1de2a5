"""Which accelerator is in use: one in a process, chosen once, replaced or scoped on purpose."""

from __future__ import annotations

import importlib
import os
import sys
from threading import RLock, get_ident
from typing import TYPE_CHECKING

from opforge import settings
from opforge.errors import AcceleratorInUseError, AcceleratorUnavailableError, SettingError, UnknownAcceleratorError

from .entry_points import entry_points
from .interface.accelerator import INTERFACE_VERSION, Accelerator

if TYPE_CHECKING:
    from types import TracebackType

GROUP = "opforge.accelerators"
"""The entry-point group through which packages add accelerators: name = "module:Class"."""

BUILT_IN = {
    "npu": "opforge.accelerator.devices.npu:NPUAccelerator",
    "hpu": "opforge.accelerator.devices.hpu:HPUAccelerator",
    "mlu": "opforge.accelerator.devices.mlu:MLUAccelerator",
    "sdaa": "opforge.accelerator.devices.sdaa:SDAAAccelerator",
    "supa": "opforge.accelerator.devices.supa:SUPAAccelerator",
    "cuda": "opforge.accelerator.devices.cuda:CUDAAccelerator",
    "xpu": "opforge.accelerator.devices.xpu:XPUAccelerator",
    "mps": "opforge.accelerator.devices.mps:MPSAccelerator",
    "cpu": "opforge.accelerator.devices.cpu:CPUAccelerator",
    "null": "opforge.accelerator.devices.null:NullAccelerator",
}
"""Opforge's own accelerators, in the order in which they are tried.

Those whose package somebody installed on purpose go first: torch_supa answers for CUDA's names, for one.
"""
NEVER_PICKED = frozenset({"null"})
DRIVER_FILES = {
    "npu": ("/dev/davinci_manager",),
    "hpu": ("/dev/accel",),
    "mlu": ("/dev/cambricon_ctl",),
    "sdaa": ("/dev/tcaicard0", "/opt/tecoai"),
    "supa": ("/dev/biren",),
    "cuda": ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvmap"),
    "xpu": ("/dev/dri", "/dev/dxg"),
    "mps": ("/System/Library/Frameworks/Metal.framework",) if sys.platform == "darwin" else (),
}
"""An accelerator of which none of these is there is not tried unless it is named: a look costs a hit far less."""
TORCH_BUILDS = {"cuda": ("cuda", "hip"), "xpu": ("xpu",)}
"""What `torch.version` names where torch is built for the device."""

_lock = RLock()
_active: Accelerator | None = None
_scope_thread: int | None = None
_scopes: list[Accelerator | None] = []
"""What was active before each of the scopes that are open, the outermost first."""


def get_accelerator() -> Accelerator:
    """Give the accelerator in use; the first call chooses it.

    OPFORGE_ACCELERATOR names it, or DS_ACCELERATOR where that is unset. Without either, the first that is available
    is taken: accelerators from other packages by name, then opforge's own, the CPU last.
    UnknownAcceleratorError or AcceleratorUnavailableError where the one that was named cannot be had.
    """
    global _active
    if _active is not None:
        return _active
    with _lock:
        if _active is None:
            _active = _choose()
        return _active


def set_accelerator(accelerator: Accelerator | str) -> None:
    """Put another accelerator in use for the whole process, by name or as an object; its builders are its own.

    Inside a `use_accelerator` scope it lasts until the scope ends; another thread's scope refuses it.
    """
    global _active
    chosen = _resolve(accelerator)
    with _lock:
        _refuse_other_threads(chosen)
        _active = chosen


class use_accelerator:
    """In which another accelerator is in use, for the whole process: `with use_accelerator("null") as accelerator:`.

    Scopes nest in one thread. AcceleratorInUseError where another thread is inside one.
    """

    def __init__(self, accelerator: Accelerator | str) -> None:
        self._wanted = accelerator

    def __enter__(self) -> Accelerator:
        global _active, _scope_thread
        chosen = _resolve(self._wanted)
        with _lock:
            _refuse_other_threads(chosen)
            _scopes.append(_active)
            _scope_thread, _active = get_ident(), chosen
        return chosen

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active, _scope_thread
        with _lock:
            # A fork in another thread may have closed the scope in this process already.
            if _scopes:
                _active = _scopes.pop()
            if not _scopes:
                _scope_thread = None


def _choose() -> Accelerator:
    asked = settings.accelerator()
    if asked is not None:
        return _named(*asked)
    for name, place, source in external():
        made, _, _ = attempt(name, place, source)
        if made is not None:
            return made
    reason = ""
    for name, place in BUILT_IN.items():
        if name not in NEVER_PICKED and _may_be_there(name):
            made, reason, _ = attempt(name, place, "opforge")
            if made is not None:
                return made
    raise AcceleratorUnavailableError("cpu", reason, "opforge")


def _may_be_there(name: str) -> bool:
    if name in TORCH_BUILDS:
        version = getattr(sys.modules.get("torch"), "version", None)
        if version and not any(getattr(version, build, None) for build in TORCH_BUILDS[name]):
            return False
    files = DRIVER_FILES.get(name)
    return files is None or any(os.access(file, os.F_OK) for file in files)


def make_accelerator(name: str, asked_by: str) -> Accelerator:
    """Make the accelerator of that name, whether or not its device is here.

    UnknownAcceleratorError where there is none, AcceleratorUnavailableError where the package that adds it is broken.
    """
    name, place, source = _find(name, asked_by)
    made, reason, problem = _make(name, place, source)
    if made is None:
        raise AcceleratorUnavailableError(name, reason, asked_by) from problem
    return made


def _named(name: str, asked_by: str) -> Accelerator:
    try:
        name, place, source = _find(name, asked_by)
    except UnknownAcceleratorError as unknown:
        from .availability import torch_only

        for candidate in torch_only(frozenset(unknown.known)):
            if candidate.name == name.lower():
                raise AcceleratorUnavailableError(candidate.name, candidate.reason, asked_by) from None
        raise
    made, reason, problem = attempt(name, place, source)
    if made is None:
        raise AcceleratorUnavailableError(name, reason, asked_by) from problem
    return made


def _find(name: str, asked_by: str) -> tuple[str, str, str]:
    """Give (name, "module:Class", distribution) of the accelerator of that name."""
    places = {one: (place, source) for one, place, source in reversed(external())}
    places.update((one, (place, "opforge")) for one, place in BUILT_IN.items())
    known = name if name in places else name.lower()
    if known not in places:
        raise UnknownAcceleratorError(name, sorted(places), asked_by)
    return known, *places[known]


def external() -> list[tuple[str, str, str]]:
    """Give (name, "module:Class", distribution) of the accelerators that other packages add, by name."""
    return sorted((point.name, point.value, point.source) for point in entry_points(GROUP))


def attempt(name: str, place: str, source: str) -> tuple[Accelerator | None, str, BaseException | None]:
    """Give the accelerator, or None and why it cannot be used. Code of other packages may raise anything."""
    made, reason, problem = _make(name, place, source)
    try:
        return (None, made.unavailable_reason(), None) if made and not made.is_available() else (made, reason, problem)
    except Exception as raised:
        return None, f"{place} of {source} failed: {type(raised).__name__}: {raised}", raised


def _make(name: str, place: str, source: str) -> tuple[Accelerator | None, str, BaseException | None]:
    """Give the accelerator, available or not, or None and what is wrong with the package that adds it."""
    if name in BUILT_IN and place != BUILT_IN[name]:
        return None, f"the name {name!r} is opforge's own: {source} must choose another", None
    module, colon, attribute = place.partition("[")[0].strip().partition(":")
    if not colon:
        return None, f"{place!r} of {source} names no class: it must be 'module:Class'", None
    try:
        found = getattr(importlib.import_module(module), attribute)
        version = getattr(found, "interface_version", None)
        if version != INTERFACE_VERSION:
            spoken = "no interface version" if version is None else f"version {version} of the accelerator interface"
            return None, f"{source} speaks {spoken}, and this opforge version {INTERFACE_VERSION}", None
        made = found()
    except (Exception, SystemExit) as problem:  # a package that ends the process when imported ends none here
        return None, f"{place} of {source} failed: {type(problem).__name__}: {problem}", problem
    if not isinstance(made, Accelerator):
        return None, f"{place} of {source} is no opforge.accelerator.Accelerator", None
    if getattr(made, "name", None) != name:
        return None, f"{place} of {source} is named {getattr(made, 'name', None)!r}, and its entry point {name!r}", None
    return made, "", None


def _resolve(accelerator: Accelerator | str) -> Accelerator:
    if isinstance(accelerator, str):
        return _named(accelerator, "the program")
    if not isinstance(accelerator, Accelerator):
        raise SettingError("accelerator", accelerator, "an opforge.accelerator.Accelerator, or the name of one")
    return accelerator


def _refuse_other_threads(wanted: Accelerator) -> None:
    if _scope_thread is not None and _scope_thread != get_ident():
        raise AcceleratorInUseError(wanted.name, _active.name if _active is not None else "")


def _after_fork() -> None:
    """Take a new lock, and close the scopes of a thread that does not exist in the child."""
    global _lock, _active, _scope_thread
    _lock = RLock()
    if _scope_thread is not None and _scope_thread != get_ident():
        _active, _scope_thread = _scopes[0], None
        _scopes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
