"""DeepSpeed on opforge: `install()` makes an unmodified DeepSpeed use opforge's accelerator and opforge's builders."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

from opforge.accelerator.select import get_accelerator, whole
from opforge.compat.rebinding import Replacement, rebind, restore
from opforge.compat.tested_version import installed_version
from opforge.errors import DeepSpeedError
from opforge.foundation import settings

from .accelerator import deepspeed_accelerator, make_adapter
from .builders import DROP_IN, check_names, replacement_builders

__all__ = ["TESTED", "install", "uninstall"]
TESTED = "==0.19.8"
"""The versions of DeepSpeed that opforge's tests ran with."""

_undo: list[Callable[[], None]] = []


def install(builders: Collection[str] = DROP_IN) -> None:
    """Makes DeepSpeed use the current accelerator, and for `builders` opforge's ops instead of its own.

    Imports DeepSpeed. Modules that were imported before are changed too. Builders that opforge lacks stay DeepSpeed's.
    Call it again after another accelerator was chosen. An untested version of DeepSpeed is used with a warning.
    It sets OPFORGE_DEEPSPEED, so that the processes that this one starts use opforge too.

    Raises:
        BuilderError: There is no builder of one of these names.
        DeepSpeedError: DeepSpeed is missing, or its interface differs too much from the one that opforge supports.
    """
    uninstall()
    version = installed_version("deepspeed", "DeepSpeed", TESTED, DeepSpeedError)
    accelerator = whole(get_accelerator())
    try:
        package = importlib.import_module("deepspeed.accelerator")
        op_builders = importlib.import_module("deepspeed.ops.op_builder")
        all_ops = _all_ops()
        original = deepspeed_accelerator(accelerator.name, package)
        replacements = replacement_builders(accelerator, original, builders)
        adapter = make_adapter(accelerator, original, package.DeepSpeedAccelerator, replacements)
        previous = package.get_accelerator()
    except (ImportError, AttributeError, TypeError) as error:
        raise DeepSpeedError(f"DeepSpeed {version} has an unsupported interface ({error})", TESTED) from error
    if builders is not DROP_IN:
        check_names(accelerator, original, builders)
    package.set_accelerator(adapter)
    _undo.append(lambda: package.set_accelerator(previous))
    _undo.append(_rebind_builders(adapter, op_builders))
    _undo.append(_replace_listed([kind() for kind in replacements.values()], all_ops))
    _undo.append(_set_for_children(builders))


def uninstall() -> None:
    """Restores DeepSpeed's accelerator and builders. Optimizers that exist keep the op that they loaded."""
    while _undo:
        _undo.pop()()


def _rebind_builders(adapter: Any, op_builders: Any) -> Callable[[], None]:
    """Replaces the builder classes that DeepSpeed bound when it was imported. Returns the function that undoes it."""
    base_classes = ("OpBuilder", "CUDAOpBuilder")
    names = [name for name in vars(op_builders) if name.endswith("Builder") and name not in base_classes]
    replacements = [Replacement(name, getattr(op_builders, name), adapter.get_op_builder(name)) for name in names]
    rebound = rebind(
        (replacement for replacement in replacements if replacement.old is not replacement.new),
        # DeepSpeed's own accelerators take the classes from the modules that define them, so these keep theirs.
        keeps=lambda module: module.startswith((f"{op_builders.__name__}.", "opforge.")),
    )
    return lambda: restore(rebound)


def _all_ops() -> dict[str, Any]:
    """Returns the builders that `ds_report` lists, by the names of their ops."""
    # DeepSpeed takes any package called `accelerator` for its own source tree, and opforge's checkout has one.
    hidden = {"accelerator": sys.modules.get("accelerator")}
    sys.modules["accelerator"] = None  # type: ignore[assignment]
    try:
        all_ops: dict[str, Any] = importlib.import_module("deepspeed.ops.op_builder.all_ops").ALL_OPS
        return all_ops
    finally:
        del sys.modules["accelerator"]
        sys.modules.update((name, module) for name, module in hidden.items() if module is not None)


def _replace_listed(builders: Iterable[Any], all_ops: dict[str, Any]) -> Callable[[], None]:
    """Puts the builders into the list that `ds_report` shows, and into the compatible ops, by DeepSpeed's names.

    DeepSpeed makes its dict of compatible ops from that list at its first use. Returns the function that undoes it.
    """
    listed = {getattr(builder, "NAME", builder.name): builder for builder in builders}
    compatible: dict[str, Any] = vars(sys.modules["deepspeed.ops"]).get("__compatible_ops__", {})
    before, compatible_before = dict(all_ops), dict(compatible)
    all_ops.update(listed)
    if compatible:
        compatible.update({name: builder.is_compatible() for name, builder in listed.items() if name not in compatible})

    def undo() -> None:
        for changed, former in ((all_ops, before), (compatible, compatible_before)):
            changed.clear()
            changed.update(former)

    return undo


def _set_for_children(builders: Collection[str]) -> Callable[[], None]:
    """Sets OPFORGE_DEEPSPEED, which other processes inherit. Returns the function that undoes it."""
    variable = settings.deepspeed.variable
    before = os.environ.get(variable)
    os.environ[variable] = "1" if builders is DROP_IN else ",".join(builders)

    def undo() -> None:
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before

    return undo
