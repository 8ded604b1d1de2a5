"""What an `OpBuilder` does if the fast path says no: its spec, the look-up in full, the build, and the load.

The builders here are OpBuilders; `base.py` imports this file.
"""

from __future__ import annotations

import os
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opforge.accelerator.target import Target
from opforge.cache.current import current_store
from opforge.cache.layout import Layout
from opforge.cache.maintenance import limits
from opforge.cache.store import Store
from opforge.errors import LoadError, OpIncompatibleError
from opforge.warm import lookup
from opforge.warm.library import Entry
from opforge.warm.lookup import DEEPSPEED_METHODS, FLAG_ENDINGS

from . import loader
from .declaration import attributes, op_spec, targets
from .declaration.machine import this_machine
from .declaration.op_spec import OpSpec
from .lookup import compatibility, finder
from .lookup.device_requirements import device_problem
from .registration import without_op
from .resources import out_of_memory

if TYPE_CHECKING:
    from .run.ninja import Progress


def target_of(builder: Any, requested: Target | str | None) -> Target:
    """Returns the concrete target of a builder: the requested one, or the default for its devices."""
    if isinstance(requested, str):
        requested = Target.parse(requested)
    return targets.of_declaration(builder, requested)


def resolve(builder: Any, target: Target) -> OpSpec:
    """Returns the spec of a builder for a concrete target."""
    return op_spec.resolve(builder, target)


NOT_OF_THE_BUILD = frozenset({"gate", "is_compatible", "fakes", "signatures"})
"""What a builder may override or declare without changing its spec."""


def is_computed(builder: Any, base: type, is_fixed: Callable[..., bool]) -> bool:
    """Returns whether a builder's spec may change although its attributes compare as equal.

    That is so if code of the author's shapes the build (a method of OpBuilder's, a property, DeepSpeed's methods), if
    a value is no plain one, by `is_fixed` (what is in it, or what it stands for, may change in place), or if a table
    FOR_ALL_BUILDERS applies.
    """
    kind = type(builder)
    if lookup.tables_for_all(kind):
        return True
    spaces = [vars(builder), *(vars(at) for at in kind.__mro__ if at not in (base, object)), lookup.set_on(base)]
    own = lookup.as_written
    for space in spaces:
        for name, value in space.items():
            if name in ("__getattr__", "__getattribute__"):
                return True
            if name[:2] == "__":
                continue
            if isinstance(value, (types.FunctionType, staticmethod, classmethod)):
                shapes = name in own or name in DEEPSPEED_METHODS or name.endswith(FLAG_ENDINGS)
                if shapes and name not in NOT_OF_THE_BUILD and not _is_opforges(value):
                    return True
            elif name in ("fakes", "signatures"):
                if not is_fixed(value, 3):
                    return True
            elif not is_fixed(value) and not (isinstance(value, property) and _is_opforges(value.fget)):
                return True
    return False


def _is_opforges(function: Any) -> bool:
    return str(getattr(getattr(function, "__func__", function), "__module__", "")).startswith("opforge.")


def verdict(builder: Any, verbose: bool, look_up: bool) -> compatibility.Compatibility:
    """Returns whether the builder's `load` can succeed here, with every reason why not."""
    spec = builder.spec()
    return compatibility.verdict(spec, gate_problems(builder, spec), verbose, look_up=look_up)


def load(builder: Any, verbose: bool) -> tuple[Any, Entry]:
    """Returns the op's functions, and the entry that they are from. Raises what `OpBuilder.load` raises."""
    spec = builder.spec()
    reasons = gate_problems(builder, spec)
    if not reasons and builder._overrides("is_compatible"):
        reasons = compatibility.own_reasons(builder)
    if reasons:
        raise OpIncompatibleError(spec.name, str(spec.target), reasons)
    entry, library = _load_entry(builder, spec, verbose)
    if entry.origin == "built":
        without_op.warn(spec.name, library, spec.roots)
    return library, entry


def _load_entry(builder: Any, spec: OpSpec, verbose: bool) -> tuple[Entry, Any]:
    for last in (False, True):  # an entry that is evicted in between is looked for once more
        progress = finder.printed_steps(spec, lambda: builder.trace) if verbose else None
        entry = builder._entry(spec, progress, False, None, builder._store(), False)
        if spec.target.device != "cpu" and (
            problem := device_problem(entry.record, spec.target.arch, this_machine(spec.target.device))
        ):
            raise LoadError(spec.name, entry.library, problem, "Or build it with an older toolkit")
        began = time.perf_counter()
        try:
            library = loader.load_entry(spec.name, entry, builder.fakes, builder.signatures, spec.roots)
        except LoadError:
            if last or os.path.exists(entry.library):
                raise
            continue
        finder.log_load(spec.name, entry, time.perf_counter() - began)
        if spec.tunable and spec.target.device == "cpu":
            from .lookup import tuned  # for ops alone that have something to tune

            tuned.apply(spec, entry)
        return entry, library
    raise AssertionError("unreachable")


def entry_of(
    builder: Any,
    spec: OpSpec,
    declared: str,
    progress: Progress | None,
    force: bool,
    jobs: int | None,
    store: Store | None,
    exact: bool,
) -> Entry:
    """Returns the op's entry, as `OpBuilder.build` does.

    `spec` is the builder's. It follows from `declared`, unless that is empty.
    """
    try:
        if entry := _stored(builder, finder.Finder(spec, store or current_store(), exact, declared=declared), force):
            return entry
        from .run import pipeline  # 20 ms that no op needs which is built already

        return pipeline.build(spec, builder.trace, progress, force, jobs, store, declared=declared)
    except MemoryError as error:
        raise out_of_memory(spec.name) from error


def _stored(builder: Any, look_up: finder.Finder, force: bool) -> Entry | None:
    """Returns the entry that makes a build unnecessary, or None. What was seen and not taken is the builder's trace."""
    try:
        return finder.stored_entry(look_up, force)
    finally:
        builder.trace = [*look_up.rejected]


def gate_problems(builder: Any, spec: OpSpec) -> list[str]:
    """Returns why the op cannot run here, whatever is stored: the target's reasons, or those of the builder's gate."""
    problems = targets.load_problems(spec.target, spec.devices, spec.abi, dict(attributes.requirements(spec)))
    if not problems and builder._overrides("gate"):
        problems += builder.gate(compatibility.capabilities_for(spec.target, spec.name))
    return problems


def enforce_limits(store: str) -> None:
    """Removes what is over the limits of a store, if they are due."""
    limits.enforce_settings(Layout(store))
