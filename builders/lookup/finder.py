"""Looks for an op that is built already: in what is remembered, in layers by description, in the store by plan."""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from opforge import settings
from opforge.builders import toolchains
from opforge.builders.spec import abi
from opforge.builders.spec.machine import this_machine
from opforge.builders.spec.op_spec import root_paths
from opforge.cache import machine_folder
from opforge.cache.current import current_store
from opforge.cache.filesystem.files import can_write
from opforge.cache.layout import FETCHED, PACKAGE_LAYER, UNSIGNED, Layout
from opforge.cache.store import Rejected, Source
from opforge.errors import OpIncompatibleError, PrebuiltRequiredError, ToolchainError, ToolchainNotFoundError
from opforge.trust import folder_problem

from . import memory

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec
    from opforge.builders.toolchains.toolchain import Toolchain
    from opforge.cache.records.entry import Entry
    from opforge.cache.store import Match, Store

log = logging.getLogger("opforge")
FindToolchain = Callable[["OpSpec", "Store"], "Toolchain"]


class Found(NamedTuple):
    """The outcome of a look-up."""

    entry: Entry | None
    rejected: tuple[Rejected, ...]
    """Every stored entry that was seen and not taken, with the reason."""


def find(
    spec: OpSpec,
    store: Store | None = None,
    exact: bool = False,
    find_toolchain: FindToolchain | None = None,
) -> Found:
    """Returns the prebuilt or stored entry for the spec as its files are now, and every entry that was rejected.

    A layer's entry for a lower CPU level is accepted too, unless `exact`. Raises SourceNotFoundError, CacheDirError
    and what finding a toolchain raises, except ToolchainNotFoundError if a stored entry fits without a compiler.
    """
    rejected: list[Rejected] = []
    entry = search(spec, store or current_store(), exact, find_toolchain, rejected)
    return Found(entry, tuple(dict.fromkeys(rejected)))


def log_event(event: str, **fields: object) -> None:
    """Logs an event of a load. `opforge.events` is imported only if a log is set, to keep hits fast."""
    if settings.variable("OPFORGE_LOG"):
        from opforge.events import emit

        emit(event, **fields)


def log_load(op: str, entry: Entry, seconds: float) -> None:
    """Logs that an entry was loaded."""
    log_event("load", op=op, seconds=seconds, path=entry.library, origin=entry.origin)


def stored_entry(
    spec: OpSpec, store: Store | None, exact: bool, force: bool, rejected: list[Rejected], counts: bool = True
) -> Entry | None:
    """Returns the entry that makes a build unnecessary, or None. `rejected` gets every entry that does not fit.

    `force` looks for nothing. Logs the event `hit` or `miss`; without `counts` no miss, because another look-up follows
    that does. Raises PrebuiltRequiredError if there is no entry and
    building is forbidden.
    """
    began, seen = time.perf_counter(), list[Rejected]()
    store = store or current_store()
    try:
        entry = None if force else _search_and_ask(spec, store, exact, seen)
    finally:
        rejected += dict.fromkeys(seen)
    if entry:
        seconds = entry.record.get("seconds")
        kind = {"cached" if entry.origin == "cache" else "prebuilt": 1}
        machine_folder.count(store.layout.root, saved=seconds if type(seconds) is float else 0, **kind)
        if entry.origin.endswith(UNSIGNED):
            log.warning("%s: its library came without a signature, from %s", spec.name, entry.origin)
        log_event("hit", op=spec.name, seconds=time.perf_counter() - began, path=entry.folder, origin=entry.origin)
        return entry
    from opforge import variables  # not on the path of a hit

    if not force and counts:
        machine_folder.count(store.layout.root, missed=1)
    variables.warn_of_useless_settings()
    if settings.prebuilt() == "require":
        add_other_descriptions(spec, store, rejected)
        raise PrebuiltRequiredError(spec.name, str(spec.target), [*map(str, rejected)])
    reasons = ["it was requested"] if force else [*map(str, rejected)]
    if counts:
        log_event("miss", op=spec.name, seconds=time.perf_counter() - began, reasons=reasons)
    return None


def _search_and_ask(spec: OpSpec, store: Store, exact: bool, rejected: list[Rejected]) -> Entry | None:
    """Searches here, and after a miss asks the remotes. Raises what `search` raises, unless a remote has an entry."""
    began, has_asked = time.time(), False

    def ask(is_last_resort: bool = False) -> Entry | None:
        nonlocal has_asked
        if has_asked and not (is_last_resort and machine_folder.can_remember()):
            return None  # nothing that was remembered has answered
        has_asked = True
        return ask_remotes(spec, store, exact, rejected, began if is_last_resort else 0.0)

    try:
        return search(spec, store, exact, None, rejected, ask) or ask()
    except (ToolchainError, OpIncompatibleError):  # without a compiler for the target, a remote is the only way
        if entry := ask(True):
            return entry
        raise


def ask_remotes(spec: OpSpec, store: Store, exact: bool, rejected: list[Rejected], since: float = 0.0) -> Entry | None:
    """Returns an entry that a remote has for the spec, after fetching it; None if no remote is configured or has one.

    A remote that had nothing is asked again if that was before `since`, in seconds since the epoch. What was fetched
    before is verified again if the trust file has changed, even if no remote is configured.
    """
    if settings.prebuilt() == "ignore" or not (settings.remotes() or os.path.isdir(store.layout.path(FETCHED))):
        return None
    from . import remotes  # not on the path of a hit

    into = remotes.bring(spec, store, exact, rejected, since)
    return search(spec, into, exact, None, rejected) if into else None


def offered(spec: OpSpec, store: Store, exact: bool, rejected: list[Rejected]) -> str:
    """Returns what a remote would give for the spec, as one line; empty if nothing. Fetches no library.

    `rejected` gets the offers that do not fit and the remotes that were not asked, with the reason.
    """
    if settings.prebuilt() == "ignore" or not settings.remotes():
        return ""
    from . import remotes  # not on the path of a hit

    request = remotes.request_for(spec, store, exact)
    return next((line for source in remotes.sources() if (line := source.offered(request, rejected))), "")


def search(
    spec: OpSpec,
    store: Store,
    exact: bool,
    find_toolchain: FindToolchain | None,
    rejected: list[Rejected],
    ask: Callable[[bool], Entry | None] | None = None,
) -> Entry | None:
    """Searches as `find` does, but appends to `rejected`, which is filled even if the look-up raises.

    `ask` asks the remotes. It is called before a compiler is looked for, unless the store has this description; and
    with True, as the last resort, if there is no compiler.
    """
    sources = sources_of(spec, store)
    lookup = memory.Lookup(spec, store, sources, root_paths(spec), exact)
    # A toolchain that a caller hands in is in no look-up's name.
    remembers = find_toolchain is None and not settings.paranoid()
    if remembers and (sources or spec.uses_host_compiler) and (entry := memory.recall(lookup, {})):
        return entry
    is_kept = remembers and machine_folder.can_remember()
    if remembers and not is_kept and _is_read_only(store):
        # Neither this look-up nor a build can leave anything behind. The user's own store is searched as a layer is:
        # otherwise each process would have to find the compiler, and hash every header that it reads.
        sources = [*sources, store.own]
        lookup = lookup._replace(sources=sources)
    # Before the sources are located: what appears between the two is then seen at the next look-up.
    absent = memory.absent_paths(spec)
    description = _description_key(spec) if sources else ""
    snapshot = memory.take_snapshot(lookup, description, absent) if is_kept else None
    if sources and (match := _match(lookup, description, rejected)):
        match = match._replace(entry=memory.watching(match.entry, absent))
        if snapshot:
            memory.remember(lookup, {}, {}, match, snapshot)
        return match.entry
    if ask and settings.remotes():
        description = description or _description_key(spec)
        if not os.path.isdir(store.layout.description(description)) and (entry := ask(False)):
            return memory.watching(entry, absent)
    snapshot = snapshot or memory.take_snapshot(lookup, description, absent)
    find_toolchain = find_toolchain or toolchains.find_toolchain
    programs: Mapping[str, object] = {}
    try:
        toolchain = find_toolchain(spec, store)
        if not spec.uses_host_compiler:  # the roots that it adds have to be known before anything is compared
            programs = toolchain.programs()
            lookup = lookup._replace(root_paths=root_paths(spec, toolchain.root_paths()))
            if remembers and (entry := memory.recall(lookup, programs)):
                return entry
        from opforge.builders.planner import make_plan

        plan = make_plan(spec, toolchain)
    except ToolchainNotFoundError:
        # Without a compiler there is no plan, but an entry that this user built before may fit the description.
        description = description or _description_key(spec)
        match = _match(lookup._replace(sources=[store.own]), description, rejected)
        if match:
            match = memory.with_compiler(match, {}, snapshot)
            memory.note_use(store, os.path.join(store.layout.description(description), match.entry.key))
            return match.entry
        return ask(True) if ask else None
    match = store.get(plan.key, lookup.root_paths, rejected, abi.interface_problem)
    if match:
        match = memory.with_compiler(match, toolchain.programs(), snapshot)
        memory.note_use(store, match.pointer)
        if is_kept:
            memory.remember(lookup, programs, toolchain.programs(), match, snapshot)
    return match and match.entry


def _is_read_only(store: Store) -> bool:
    return settings.prebuilt() != "ignore" and not can_write(store.layout.path())


def _description_key(spec: OpSpec) -> str:
    from opforge.builders.spec.description import description_key  # not on the path of a hit

    return description_key(spec)


def _match(lookup: memory.Lookup, description: str, rejected: list[Rejected]) -> Match | None:
    """Returns a prebuilt entry of the sources, in order."""
    from .fit import fit_of

    fit = fit_of(lookup.spec, lookup.exact, this_machine(lookup.spec.target.device))
    for source in lookup.sources:
        match = source.find(description, fit, lookup.root_paths, lookup.store.disk, rejected)
        if match:
            return match
    return None


def sources_of(spec: OpSpec, store: Store) -> list[Source]:
    """Returns where prebuilt entries are looked for, in order; nothing if OPFORGE_PREBUILT forbids it."""
    sources = [*store.layers, *package_sources(spec.package, store.owners), *installed_sources(store.owners)]
    if os.access(store.layout.path(FETCHED), os.F_OK):
        sources.append(store.fetched)
    return sources if sources and settings.prebuilt() != "ignore" else []


def installed_sources(owners: Collection[int]) -> list[Source]:
    """Returns the folders of installed kernel packages that hold libraries, but for those that others could change."""
    sources = []
    for root, _scope in settings.kernel_folders():
        layout = Layout(root)
        if os.access(layout.path("descriptions"), os.F_OK) and folder_problem(root, owners) is None:
            sources.append(Source(layout, owners))
    return sources


def package_sources(package: str, owners: Collection[int]) -> list[Source]:
    """Returns the layers inside an imported package; none if it carries no ops, or is no package."""
    sources = []
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        root = f"{folder}/{PACKAGE_LAYER}"
        if os.access(root, os.F_OK):  # half the time of os.path.isdir, where there is nothing
            # Whoever can write the package's code is trusted with its libraries: that code is running already.
            own = os.stat(folder)
            bits = own.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            sources.append(Source(Layout(root), {*owners, own.st_uid}, bits))
    return sources


def add_other_descriptions(spec: OpSpec, store: Store, rejected: list[Rejected]) -> None:
    """Appends to `rejected` the prebuilt entries of this op that have another description, with what differs."""
    from opforge.cache.maintenance.explain import rejected_entries

    paths, seen = root_paths(spec), {entry.where for entry in rejected}
    for source in sources_of(spec, store):
        if source.area == FETCHED:
            continue  # all entries of the store, most of which were built here
        others = rejected_entries(source.layout, spec.name, spec.target.device, paths, store.disk)
        rejected += [Rejected(folder, reason) for folder, reason in others if folder not in seen]


def printed_steps(spec: OpSpec, rejected: Callable[[], Sequence[Rejected]]) -> Callable[[int, int, str], None]:
    """Returns what prints the steps of a build in words. `rejected` returns the stored entries that do not fit."""
    from opforge.builders.waiting.steps import Steps  # not on the path of a hit

    return Steps(spec.name, str(spec.target), rejected)


def shorten(error: BaseException, always: bool = False) -> None:
    """Ends the traceback of an error at the line that called opforge; see `tracebacks.shorten`."""
    from opforge import tracebacks  # not on the path of a hit

    tracebacks.shorten(error, always)
