"""DeepSpeed on opforge: `install()` makes an unmodified DeepSpeed use opforge's accelerator and opforge's builders."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from opforge.accelerator.select import get_accelerator
from opforge.builders import cpu as host_builders
from opforge.errors import DeepSpeedError

from .rebinding import Replacement, rebind, restore

if TYPE_CHECKING:
    from opforge.accelerator.interface import Accelerator

TESTED = "==0.19.8"
"""The versions of DeepSpeed that opforge's own tests ran with."""
DROP_IN = ("CPUAdagradBuilder", "CPUAdamBuilder", "CPULionBuilder")
"""The builders whose ops have the functions that DeepSpeed's front ends call, with their arguments."""
PINNING = ("pin_memory", "pin_empty", "pin_empty_like", "is_pinned", "unpin_memory")
"""Left to DeepSpeed, which keeps an account of pinned memory; it does the work through the `_torch_` methods, ours."""

log = logging.getLogger("opforge")
_undo: list[Callable[[], None]] = []


def install(builders: Collection[str] = DROP_IN) -> None:
    """Make DeepSpeed use the accelerator in use here, and for `builders` opforge's ops instead of its own.

    Imports DeepSpeed; modules that were imported before are changed too. Builders that opforge lacks stay DeepSpeed's.
    Called again, after another accelerator was chosen, it follows. Raises DeepSpeedError where DeepSpeed is missing or
    is too different from the version that opforge knows; one that is merely untested is used with a warning.
    """
    uninstall()
    version = _version()
    try:
        place = importlib.import_module("deepspeed.accelerator")
        offered = importlib.import_module("deepspeed.ops.op_builder")
        theirs = _their_accelerator(get_accelerator().name, place)
        kind = _kind(get_accelerator(), theirs, place.DeepSpeedAccelerator, frozenset(builders))
        before = place.get_accelerator()
    except (ImportError, AttributeError) as error:
        raise DeepSpeedError(f"DeepSpeed {version} is another than expected ({error})", TESTED) from error
    if kind.__abstractmethods__:
        wanted = ", ".join(sorted(kind.__abstractmethods__))
        raise DeepSpeedError(f"DeepSpeed {version} asks accelerators for what opforge's have not: {wanted}", TESTED)
    adapter = object.__new__(kind)
    # One accelerator seen through two interfaces: what is chosen through either, such as the device, holds for both.
    adapter.__dict__ = get_accelerator().__dict__
    place.set_accelerator(adapter)
    _undo.append(lambda: place.set_accelerator(before))
    _undo.append(_rebind_builders(adapter, offered))
    _undo.append(_relist_ops(adapter, builders))


def uninstall() -> None:
    """Give DeepSpeed its own accelerator and builders back. Optimizers that exist keep the op that they loaded."""
    while _undo:
        _undo.pop()()


def _version() -> str:
    """DeepSpeed's version. Raises DeepSpeedError where there is none, warns of one that was not tested."""
    from importlib.metadata import PackageNotFoundError, version

    from packaging.specifiers import SpecifierSet

    try:
        found = version("deepspeed")
    except PackageNotFoundError:
        raise DeepSpeedError("DeepSpeed is not installed", TESTED) from None
    if found not in SpecifierSet(TESTED):
        log.warning("DeepSpeed %s is installed, and opforge was tested with %s alone", found, TESTED)
    return found


def _their_accelerator(name: str, place: Any) -> Any:
    """DeepSpeed's own accelerator for the device, which has its builders; that of the CPU where it has none."""
    module = f"{place.__name__}.{name}_accelerator"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return _their_accelerator("cpu", place)
    own = (one for one in vars(found).values() if getattr(one, "__module__", None) == module)
    return next(one for one in own if isinstance(one, type) and issubclass(one, place.DeepSpeedAccelerator))()


def _kind(ours: Accelerator, theirs: Any, interface: type, builders: frozenset[str]) -> Any:
    """The class of `ours` that is DeepSpeed's kind of accelerator too."""

    def get_op_builder(self: Any, class_name: str) -> Any:
        """Give opforge's builder class, else DeepSpeed's; where DeepSpeed has none, one that says so when it loads."""
        mine = ours.get_op_builder(class_name) if class_name in builders else None
        if mine is None and class_name in builders and class_name in host_builders.BUILDERS:
            # What runs on the host serves every device: ZeRO-Offload steps on the CPU for a GPU.
            module, _, attribute = host_builders.BUILDERS[class_name].partition(":")
            mine = getattr(importlib.import_module(module), attribute)
        found = mine or theirs.get_op_builder(class_name)
        return found or importlib.import_module("deepspeed.ops.op_builder.cpu").NotImplementedBuilder

    def create_op_builder(self: Any, class_name: str) -> Any:
        """Give a builder of that class."""
        return self.get_op_builder(class_name)()

    def op_builder_dir(self: Any) -> str:
        """Give the package that DeepSpeed lists its ops from: its own."""
        directory: str = theirs.op_builder_dir()
        return directory

    members = {
        "get_op_builder": get_op_builder,
        "create_op_builder": create_op_builder,
        "op_builder_dir": op_builder_dir,
        "_name": ours.name,
        "_torch_pins_host_memory": theirs._torch_pins_host_memory,
        **{name: getattr(type(theirs), name) for name in PINNING},
    }
    return type(interface)(f"DeepSpeed{type(ours).__name__}", (type(ours), interface), members)


def _rebind_builders(adapter: Any, offered: Any) -> Callable[[], None]:
    """Replace the builder classes that DeepSpeed bound when it was imported; gives what undoes it."""
    names = [name for name in vars(offered) if name.endswith("Builder") and name not in ("OpBuilder", "CUDAOpBuilder")]
    replacements = [Replacement(name, getattr(offered, name), adapter.get_op_builder(name)) for name in names]
    done = rebind(
        (one for one in replacements if one.old is not one.new),
        # Where DeepSpeed's classes are at home they stay: its own accelerators take them from there.
        keeps=lambda module: module.startswith((f"{offered.__name__}.", "opforge.")),
    )
    return lambda: restore(done)


def _relist_ops(adapter: Any, builders: Iterable[str]) -> Callable[[], None]:
    """Put our builders into the list that `ds_report` shows; gives what undoes it."""
    listed = importlib.import_module("deepspeed.ops.op_builder.all_ops").ALL_OPS
    before = dict(listed)
    for builder in map(adapter.create_op_builder, builders):
        listed[builder.name] = builder

    def undo() -> None:
        listed.clear()
        listed.update(before)

    return undo
