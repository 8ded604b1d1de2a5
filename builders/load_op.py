"""A load that the fast path does not answer, from the declaration to the op's functions, on one straight line.

`load` opens the entry that `find_or_build` returns. That is one which `search` finds (remembered, in layers, from the
remotes, in the store), or the one of `build` (lock, look again, run, admit). The steps are methods of `Finder` in
`lookup/finder.py` and of `PlannedBuild` in `run/planned_build.py`; a library is opened by `loader.py`.

The builders here are OpBuilders; `base.py` imports this file. `Loaded` in `base.py` is the op that a builder keeps in a
process, and its `is_current` says whether the next load may return that: a hit makes one, so it has no file of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.cache.current_store import current_store, store_behind_layers, writable_store
from opforge.cache.layout import UNSIGNED
from opforge.cache.store import Rejected, Store
from opforge.errors import LoadError, OpIncompatibleError, PrebuiltRequiredError, ToolchainError
from opforge.fast_path.library import Entry
from opforge.fast_path.lookup import as_written, count, count_hit
from opforge.foundation import events, settings
from opforge.foundation.settings import misspelt

from . import loader
from .declaration import attributes, targets
from .declaration.machine import this_machine
from .lookup.device_requirements import device_problem
from .lookup.finder import Finder, FindToolchain, other_descriptions
from .registration import dangling_kernels
from .resources import out_of_memory

if TYPE_CHECKING:
    from opforge.accelerator.capabilities import Capabilities
    from opforge.accelerator.target import Target

    from .declaration.op_spec import OpSpec
    from .run.ninja import Progress

log = logging.getLogger("opforge")


def load(builder: Any, declared: str, verbose: bool) -> tuple[Any, Entry]:
    """Returns the op's functions, and the entry that they are from. Raises what `OpBuilder.load` raises.

    The builder's spec follows from `declared`, unless that is empty.
    """
    spec = builder.spec()
    if reasons := gate_problems(builder, spec) or own_reasons(builder):
        raise OpIncompatibleError(spec.name, str(spec.target), reasons)
    store = store_behind_layers(builder._directory) if builder._directory else None  # None: the user's
    for is_last in (False, True):  # an entry that is evicted before it is opened is looked for once more
        progress = _printed_steps(builder, spec) if verbose else None
        entry = find_or_build(builder, spec, declared, progress, store=store)
        if spec.target.device != "cpu" and (
            problem := device_problem(entry.record, spec.target.arch, this_machine(spec.target.device))
        ):
            raise LoadError(spec.name, entry.library, problem, "Or build it with an older toolkit")
        began = time.perf_counter()
        try:
            functions = loader.load_entry(spec.name, entry, builder.fakes, builder.signatures, spec.roots)
        except LoadError:
            if is_last or os.path.exists(entry.library):
                raise
            continue
        events.emit("load", op=spec.name, seconds=time.perf_counter() - began, path=entry.library, origin=entry.origin)
        if spec.tunable and spec.target.device == "cpu":
            from .lookup import tuned  # for ops alone that have something to tune

            tuned.apply(spec, entry)
        if entry.origin == "built":
            dangling_kernels.warn(spec.name, functions, spec.roots)
        return functions, entry
    raise AssertionError("unreachable")


def find_or_build(
    builder: Any,
    spec: OpSpec,
    declared: str,
    progress: Progress | None = None,
    force: bool = False,
    jobs: int | None = None,
    store: Store | None = None,
    exact: bool = False,
) -> Entry:
    """Returns the op's entry, as `OpBuilder.build` does: a stored one that fits, or a new one.

    `spec` is the builder's. Rejected entries are in the builder's `trace`.
    """
    builder.trace = []
    try:
        look_up = Finder(spec, store or current_store(), exact, declared=declared, asks=True)
        try:
            entry = stored_entry(look_up, force)
        finally:
            builder.trace = [*look_up.rejected]
        return entry or build(spec, builder.trace, progress, force, jobs, store, declared=declared)
    except MemoryError as error:
        raise out_of_memory(spec.name) from error


def stored_entry(look_up: Finder, force: bool = False, counts: bool = True) -> Entry | None:
    """Returns the entry that makes a build unnecessary, or None. Logs the event `hit` or `miss`.

    `force` looks for nothing. Without `counts` no miss is logged, because another look-up follows. Raises
    PrebuiltRequiredError if there is no entry and building is forbidden.
    """
    began, spec, store = time.perf_counter(), look_up.lookup.spec, look_up.lookup.store
    entry = None if force else search(look_up)
    if entry:
        count_hit(store.layout.root, entry)
        if entry.origin.endswith(UNSIGNED):
            log.warning("%s: its library came without a signature, from %s", spec.name, entry.origin)
        events.emit("hit", op=spec.name, seconds=time.perf_counter() - began, path=entry.folder, origin=entry.origin)
        return entry
    if not force and counts:
        count(store.layout.root, missed=1)
    misspelt.warn_of_useless_settings()
    if settings.prebuilt() == "require":
        rejected = [*look_up.rejected, *other_descriptions(spec, store, look_up.rejected)]
        raise PrebuiltRequiredError(spec.name, str(spec.target), [*map(str, rejected)])
    reasons = ["it was requested"] if force else [*map(str, look_up.rejected)]
    if counts:
        events.emit("miss", op=spec.name, seconds=time.perf_counter() - began, reasons=reasons)
    return None


def search(look_up: Finder) -> Entry | None:
    """Returns the entry that fits, or None. Each place is looked at only if those before it have none.

    Raises SourceNotFoundError, CacheDirError and what finding a toolchain raises, except ToolchainNotFoundError.
    """

    def fetched(is_early: bool = False, is_last_resort: bool = False) -> Entry | None:
        again = look_up.fetch(is_early, is_last_resort)
        return None if again is None else search(again)

    try:
        return (
            look_up.remembered()
            or look_up.in_layers()
            or fetched(is_early=True)
            or look_up.in_store()
            or fetched(is_last_resort=look_up.lacks_compiler)
        )
    except (ToolchainError, OpIncompatibleError):  # without a compiler for the target, a remote is the only way
        if entry := fetched(is_last_resort=True):
            return entry
        raise


def build(
    spec: OpSpec,
    rejected: Sequence[Rejected] = (),
    on_progress: Progress | None = None,
    force: bool = False,
    jobs: int | None = None,
    store: Store | None = None,
    announce: bool = True,
    declared: str = "",
) -> Entry:
    """Returns the op's entry: builds it in `store`, or waits for the process that does.

    `rejected` are the stored entries that do not fit: if there is no compiler, the error lists them. `force` builds
    even if another process has published an entry meanwhile. Without `announce` the remotes do not see the build: it
    is neither claimed nor published. The spec follows from the text `declared`, unless that is empty. Raises
    BuildError, CacheDirError, LockTimeoutError.
    """
    from .no_builds import check_builds_are_allowed
    from .run.planned_build import PlannedBuild  # 20 ms that no op needs which is built already

    check_builds_are_allowed(spec.name, rejected)
    planned = PlannedBuild(spec, writable_store(store), rejected, on_progress, force, jobs, announce, declared)
    with planned.announced():
        with planned.alone() as match:  # what another process has published meanwhile, or None
            if match is None:
                with planned.run() as result:
                    match = planned.admit(result)
        return planned.done(match)


class Found(NamedTuple):
    """The outcome of a look-up."""

    entry: Entry | None
    rejected: tuple[Rejected, ...]
    """Every stored entry that was seen and not taken, with the reason."""


def find(
    spec: OpSpec, store: Store | None = None, exact: bool = False, find_toolchain: FindToolchain | None = None
) -> Found:
    """Returns the prebuilt or stored entry for the spec as its files are now, and every entry that was rejected.

    A layer's entry for a lower CPU level is accepted too, unless `exact`. Fetches nothing. Raises what `search` raises.
    """
    look_up = Finder(spec, store or current_store(), exact, find_toolchain)
    return Found(search(look_up), look_up.rejected)


def gate_problems(builder: Any, spec: OpSpec) -> list[str]:
    """Returns why the op cannot run here, stored or not: the target's reasons, or those of the builder's gate."""
    problems = targets.load_problems(spec.target, spec.devices, spec.abi, dict(attributes.requirements(spec)))
    if not problems and _overrides(builder, "gate"):
        problems += builder.gate(_capabilities_for(spec.target, spec.name))
    return problems


def own_reasons(builder: Any) -> list[str]:
    """Returns the reasons of a builder that overrides `is_compatible`, as DeepSpeed's do; none if it is true.

    The override may call `load`, which must not call it again, or the base's `is_compatible`, which looks nothing up.
    """
    if builder._in_own_verdict or not _overrides(builder, "is_compatible"):
        return []
    builder._in_own_verdict = True
    try:
        verdict = builder.is_compatible()
    finally:
        builder._in_own_verdict = False
    return [] if verdict else [*getattr(verdict, "reasons", ())] or ["its is_compatible() returns False"]


def _overrides(builder: Any, name: str) -> bool:
    return getattr(type(builder), name) is not as_written[name]


def _capabilities_for(target: Target, op: str) -> Capabilities:
    """Returns the capabilities that a builder's `gate` gets.

    Every accelerator offers the host's ops too: these get the host's capabilities.
    """
    from opforge.accelerator.registry import make_accelerator
    from opforge.accelerator.select import get_accelerator

    active = get_accelerator()
    is_host_op = target.device == "cpu" and active.target().device != "cpu"
    return (make_accelerator("cpu", op) if is_host_op else active).capabilities()


def _printed_steps(builder: Any, spec: OpSpec) -> Progress:
    """Returns the function that prints the steps of a build in words."""
    from .waiting.steps import Steps  # for load(verbose=True) alone

    return Steps(spec.name, str(spec.target), lambda: builder.trace)
