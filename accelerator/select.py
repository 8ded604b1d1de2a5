"""Which accelerator is in use: one in a process, chosen once, and replaced only by the functions below."""

from __future__ import annotations

import importlib
import os
import sys
from threading import RLock, get_ident
from typing import TYPE_CHECKING, cast

from opforge.foundation import formats, remembered_values, settings

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from .interface.accelerator import Accelerator

DRIVER_FILES = {
    "npu": ("/dev/davinci_manager",),
    "hpu": ("/dev/accel",),
    "mlu": ("/dev/cambricon_ctl",),
    "sdaa": ("/dev/tcaicard0", "/opt/tecoai"),
    "supa": ("/dev/biren",),
    "klxpu": ("/dev/xpuctrl",),
    "cuda": ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvmap"),
    "xpu": ("/dev/dri", "/dev/dxg"),
    "mps": ("/System/Library/Frameworks/Metal.framework",) if sys.platform == "darwin" else (),
}
"""Files of each device's driver. If none of them exists, the accelerator is tried only if it is named.

Every cache hit pays for this choice, and looking for a file costs far less than importing a vendor's package.
"""
TORCH_BUILDS = {"cuda": ("cuda", "hip"), "xpu": ("xpu",)}
"""The attributes of `torch.version` of which one is set if torch is built for the device."""

HOST_CLASS = "opforge.accelerator.devices.cpu"
"""The module of the CPU's accelerator."""
HOST_BUILDERS = "opforge.builders.cpu"
"""The CPU's builder package."""

_lock = RLock()
_active: Accelerator | None = None
_first_answer = ""
"""Where `get_accelerator` first returned an accelerator, such as `train.py:12`; empty if it has not."""
_has_warned = False
_scope_thread: int | None = None
_previous: list[Accelerator | None] = []
"""The accelerator that was in use before each open scope, the outermost scope first."""


def get_accelerator() -> Accelerator:
    """Returns the accelerator in use; the first call chooses it.

    OPFORGE_ACCELERATOR names it, or DS_ACCELERATOR if that is unset. Without either, the first that is available is
    used: accelerators of other packages by name, then opforge's own, the CPU last.

    Raises:
        UnknownAcceleratorError: No accelerator has the requested name.
        AcceleratorUnavailableError: The requested accelerator cannot be used.
    """
    global _active, _first_answer
    if _active is not None and _first_answer:
        return _active
    with _lock:
        if _active is None:
            try:
                _active = _choose()
            except BaseException as error:
                from opforge.foundation import tracebacks  # not on the path of a hit

                tracebacks.shorten(error)
                raise
        _first_answer = _first_answer or _caller()
        return _active


def set_accelerator(accelerator: Accelerator | str) -> None:
    """Replaces the accelerator in use, for the whole process, by one that is given by name or as an object.

    An object of a class of DeepSpeed's hierarchy is adapted to opforge's interface: methods that its own class defines
    are used, and opforge's accelerator for the device provides the others.

    Code that called `get_accelerator()` before may still hold the earlier one. So the first replacement by another kind
    of accelerator after such a call gives a RuntimeWarning, which names the place of the first call.

    Inside a `use_accelerator` scope the replacement lasts until the scope ends, and there is no warning.

    Raises:
        AcceleratorInUseError: Another thread is inside a `use_accelerator` scope.
        SettingError: The argument is neither an accelerator nor a name.
        UnknownAcceleratorError: No accelerator has the requested name.
        AcceleratorUnavailableError: The requested accelerator cannot be used.
    """
    global _active
    replacement = _resolve(accelerator)
    with _lock:
        _require_scope_thread(replacement)
        _warn_if_answered(replacement)
        _active = replacement


class use_accelerator:
    """A scope in which another accelerator is in use, for the whole process.

    `with use_accelerator("null") as accelerator:`. Scopes nest within one thread. Entering raises the errors of
    `set_accelerator`.
    """

    def __init__(self, accelerator: Accelerator | str) -> None:
        self._accelerator = accelerator

    def __enter__(self) -> Accelerator:
        global _active, _scope_thread
        accelerator = _resolve(self._accelerator)
        with _lock:
            _require_scope_thread(accelerator)
            _previous.append(_active)
            _scope_thread, _active = get_ident(), accelerator
        return accelerator

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active, _scope_thread
        with _lock:
            # The list is empty if this process was forked by another thread, whose fork hook closed the scope.
            if _previous:
                _active = _previous.pop()
            if not _previous:
                _scope_thread = None


def reset() -> None:
    """Forgets the accelerator in use and all scopes, so that the next call chooses again. For tests."""
    global _active, _first_answer, _has_warned, _scope_thread
    with _lock:
        _active = _scope_thread = None
        _first_answer, _has_warned = "", False
        _previous.clear()


def _choose() -> Accelerator:
    text, source = settings.accelerator.found()
    if text:
        return _named(settings.accelerator(), source)
    name = _name_of_choice()
    found = None if _is_any_present() else remembered_values.recall(name)
    if found and found[0] == "cpu":
        module = sys.modules.get(HOST_CLASS)
        return module.CPUAccelerator() if module else cast("Accelerator", LazyCPUAccelerator())
    from . import choice

    return choice.choose(_may_be_present, name)


class LazyCPUAccelerator:
    """Stands for the CPU's accelerator, and creates its builders: a hit does not import the interface.

    All else that is asked of it is passed on to a `CPUAccelerator`, which is made then and has the same builders.
    """

    name = torch_device = "cpu"

    def __init__(self) -> None:
        vars(self).update(_builders={}, _whole=None)

    def create_op_builder(self, class_name: str) -> Any:
        """Returns the builder of that class, as `CPUAccelerator.create_op_builder` does."""
        builder = self._builders.get(class_name)
        if builder is None:
            path = importlib.import_module(HOST_BUILDERS).BUILDERS.get(class_name)
            if path is None:
                return whole(self).create_op_builder(class_name)
            module, _, attribute = path.partition(":")
            # "cpu" is this machine's own level, as the accelerator's target is. All its builders are OpBuilders.
            builder = getattr(importlib.import_module(module), attribute)(target="cpu")
            builder = self._builders.setdefault(class_name, builder)
        return builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_whole"] or whole(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(whole(self), name, value)
        vars(self)[name] = value  # it may take the place of what this class has

    def __delattr__(self, name: str) -> None:
        delattr(whole(self), name)
        vars(self).pop(name, None)

    def __dir__(self) -> list[str]:
        return dir(whole(self))

    def __repr__(self) -> str:
        return repr(whole(self))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> Any:
        return whole(self).__reduce__()

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        # isinstance() asks for it, if the type is not the one that is looked for.
        accelerator: type[Any] = importlib.import_module(HOST_CLASS).CPUAccelerator
        return accelerator


def whole(accelerator: Any) -> Any:
    """Returns the accelerator that a lazy one stands for; any other as it is."""
    if type(accelerator) is not LazyCPUAccelerator:
        return accelerator
    state = vars(accelerator)
    if state["_whole"] is None:
        kind = importlib.import_module(HOST_CLASS).CPUAccelerator
        with _lock:
            if state["_whole"] is None:
                made = kind()
                made._builders = state["_builders"]
                state["_whole"] = made
    return state["_whole"]


def _name_of_choice() -> str:
    """Returns the name under which it is remembered that no other package adds an accelerator.

    That follows from the folders of sys.path.
    """
    where = "" if all(folder[:1] == "/" for folder in sys.path) else os.getcwd()
    return remembered_values.name_of(("accelerator", formats.ENTRY_POINTS, [*map(str, sys.path)], where))


def _is_any_present() -> bool:
    """Returns whether `_may_be_present` is true of any device."""
    for name, files in DRIVER_FILES.items():
        for file in files:
            if os.access(file, os.F_OK) and _is_torch_for(name):
                return True
    return False


def _may_be_present(name: str) -> bool:
    """Returns whether one of the driver's files exists and, if torch is imported, it is built for the device."""
    files = DRIVER_FILES.get(name)
    return files is None or (_is_torch_for(name) and any(os.access(file, os.F_OK) for file in files))


def _is_torch_for(device: str) -> bool:
    """Returns whether torch is built for a device, as far as it is imported and states that."""
    version = getattr(sys.modules.get("torch"), "version", None) if device in TORCH_BUILDS else None
    return not version or any(getattr(version, build, None) for build in TORCH_BUILDS[device])


def _named(name: str, requested_by: str) -> Accelerator:
    from opforge import errors

    from . import registry

    try:
        point = registry.find(name, requested_by)
    except errors.UnknownAcceleratorError as unknown:
        from .availability import torch_only

        for candidate in torch_only(frozenset(unknown.registered)):
            if candidate.name == name.lower():
                raise errors.AcceleratorUnavailableError(candidate.name, candidate.reason, requested_by) from None
        raise
    accelerator, reason, error = registry.make_if_available(point)
    if accelerator is None:
        raise errors.AcceleratorUnavailableError(point.name, reason, requested_by) from error
    return accelerator


def _resolve(accelerator: Accelerator | str) -> Accelerator:
    if isinstance(accelerator, str):
        return _named(accelerator, "the program")
    from opforge import errors

    from .interface.accelerator import Accelerator

    given: object = accelerator
    if not isinstance(given, Accelerator) and _is_deepspeeds(given):
        from opforge.foundation import upper_parts

        given = upper_parts.get("accelerators of DeepSpeed").own_accelerator(given)
    if not isinstance(given, Accelerator):
        raise errors.SettingError("accelerator", given, "an opforge.accelerator.Accelerator, or the name of one")
    return given


def _is_deepspeeds(accelerator: object) -> bool:
    """Returns whether an object is of a class of DeepSpeed's hierarchy, which is imported then."""
    return any(kind.__name__ == "DeepSpeedAccelerator" for kind in type(accelerator).__mro__)


def _caller() -> str:
    """Returns the file and line of the innermost frame outside of opforge."""
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith("opforge."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _warn_if_answered(replacement: Accelerator) -> None:
    global _has_warned
    if _has_warned or _previous or not _first_answer or _active is None or replacement.__class__ is _active.__class__:
        return
    _has_warned = True
    import warnings

    warnings.warn(
        f"set_accelerator({replacement.name!r}): get_accelerator() already returned {_active.name!r}, first at"
        f" {_first_answer}, and code that kept it still uses it. Call set_accelerator() before the first"
        f" get_accelerator(), or set OPFORGE_ACCELERATOR={replacement.name}.",
        RuntimeWarning,
        stacklevel=3,
    )


def _require_scope_thread(accelerator: Accelerator) -> None:
    if _scope_thread is not None and _scope_thread != get_ident():
        from opforge import errors

        raise errors.AcceleratorInUseError(accelerator.name, _active.name if _active is not None else "")


def _after_fork() -> None:
    """Takes a new lock, and closes the scopes of a thread that does not exist in the child.

    Another thread may have held the old lock during the fork; in the child nothing would ever release it.
    """
    global _lock, _active, _scope_thread
    _lock = RLock()
    if _scope_thread is not None and _scope_thread != get_ident():
        _active, _scope_thread = _previous[0], None
        _previous.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
