"""DeepSpeed on opforge: `install()` makes an unmodified DeepSpeed use opforge's accelerator and opforge's builders."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

from opforge.accelerator.select import get_accelerator
from opforge.compat.rebinding import Replacement, rebind, restore
from opforge.errors import DeepSpeedError

from .accelerator import adapted, their_accelerator
from .builders import DROP_IN, served

__all__ = ["TESTED", "install", "uninstall"]
TESTED = "==0.19.8"
"""The versions of DeepSpeed that opforge's own tests ran with."""

log = logging.getLogger("opforge")
_undo: list[Callable[[], None]] = []


def install(builders: Collection[str] = DROP_IN) -> None:
    """Make DeepSpeed use the accelerator in use here, and for `builders` opforge's ops instead of its own.

    Imports DeepSpeed; modules that were imported before are changed too. Builders that opforge lacks stay DeepSpeed's.
    Called again, after another accelerator was chosen, it follows. Raises DeepSpeedError where DeepSpeed is missing or
    is too different from the version that opforge knows; one that is merely untested is used with a warning.
    """
    uninstall()
    version, ours = _version(), get_accelerator()
    try:
        place = importlib.import_module("deepspeed.accelerator")
        offered = importlib.import_module("deepspeed.ops.op_builder")
        listed = _listed_ops()
        theirs = their_accelerator(ours.name, place)
        adapter = adapted(ours, theirs, place.DeepSpeedAccelerator, served(ours, theirs, builders))
        before = place.get_accelerator()
    except (ImportError, AttributeError, TypeError) as error:
        raise DeepSpeedError(f"DeepSpeed {version} is not as opforge knows it ({error})", TESTED) from error
    place.set_accelerator(adapter)
    _undo.append(lambda: place.set_accelerator(before))
    _undo.append(_rebind_builders(adapter, offered))
    _undo.append(_relist_ops(map(adapter.create_op_builder, builders), listed))


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
        raise DeepSpeedError("it is not installed", TESTED) from None
    if found not in SpecifierSet(TESTED):
        log.warning("DeepSpeed %s is installed, and opforge was tested with DeepSpeed%s only", found, TESTED)
    return found


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


def _listed_ops() -> dict[str, Any]:
    """The builders that `ds_report` shows, by the names of their ops."""
    # DeepSpeed would take any package called `accelerator` for its own source tree; opforge's has such a folder.
    hidden = {"accelerator": sys.modules.get("accelerator")}
    sys.modules["accelerator"] = None  # type: ignore[assignment]
    try:
        listed: dict[str, Any] = importlib.import_module("deepspeed.ops.op_builder.all_ops").ALL_OPS
        return listed
    finally:
        del sys.modules["accelerator"]
        sys.modules.update((name, module) for name, module in hidden.items() if module is not None)


def _relist_ops(builders: Iterable[Any], listed: dict[str, Any]) -> Callable[[], None]:
    """Put the builders into the list that `ds_report` shows; gives what undoes it."""
    before = dict(listed)
    listed.update((builder.name, builder) for builder in builders)

    def undo() -> None:
        listed.clear()
        listed.update(before)

    return undo
