"""Looks for an op that is built already: in what is remembered, in layers by description, in the store by plan."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from opforge import events, settings, tracebacks
from opforge.builders import toolchains
from opforge.builders.spec import abi
from opforge.builders.spec.description import description_key
from opforge.builders.spec.machine import this_machine
from opforge.builders.spec.op_spec import root_paths
from opforge.cache.current import current_store
from opforge.cache.layout import FETCHED, UNSIGNED, Layout
from opforge.cache.store import Rejected, Source
from opforge.errors import OpIncompatibleError, PrebuiltRequiredError, ToolchainError, ToolchainNotFoundError
from opforge.settings import useless
from opforge.warm import lookup as warm
from opforge.warm import machine_folder
from opforge.warm.machine_folder import can_write

from . import memory
from .fit import fit_of

if TYPE_CHECKING:
    from opforge.builders.spec.build_plan import BuildPlan
    from opforge.builders.spec.op_spec import OpSpec
    from opforge.builders.toolchains.toolchain import Toolchain
    from opforge.cache.store import Match, Store
    from opforge.warm.library import Entry

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


def log_load(op: str, entry: Entry, seconds: float) -> None:
    """Logs that an entry was loaded."""
    events.emit("load", op=op, seconds=seconds, path=entry.library, origin=entry.origin)


def stored_entry(
    spec: OpSpec,
    store: Store | None,
    exact: bool,
    force: bool,
    rejected: list[Rejected],
    counts: bool = True,
    declared: str = "",
) -> Entry | None:
    """Returns the entry that makes a build unnecessary, or None. `rejected` gets every entry that does not fit.

    `force` looks for nothing. Logs the event `hit` or `miss`; without `counts` no miss, because another look-up follows
    that does. The spec follows from the text `declared`, unless that is empty. Raises PrebuiltRequiredError if there is
    no entry and building is forbidden.
    """
    began, seen = time.perf_counter(), list[Rejected]()
    store = store or current_store()
    try:
        entry = None if force else _search_and_ask(spec, store, exact, seen, declared)
    finally:
        rejected += dict.fromkeys(seen)
    if entry:
        seconds = entry.record.get("seconds")
        kind = {"cached" if entry.origin == "cache" else "prebuilt": 1}
        warm.count(store.layout.root, saved=seconds if type(seconds) is float else 0, **kind)
        if entry.origin.endswith(UNSIGNED):
            log.warning("%s: its library came without a signature, from %s", spec.name, entry.origin)
        events.emit("hit", op=spec.name, seconds=time.perf_counter() - began, path=entry.folder, origin=entry.origin)
        return entry
    if not force and counts:
        warm.count(store.layout.root, missed=1)
    useless.warn_of_useless_settings()
    if settings.prebuilt() == "require":
        add_other_descriptions(spec, store, rejected)
        raise PrebuiltRequiredError(spec.name, str(spec.target), [*map(str, rejected)])
    reasons = ["it was requested"] if force else [*map(str, rejected)]
    if counts:
        events.emit("miss", op=spec.name, seconds=time.perf_counter() - began, reasons=reasons)
    return None


def _search_and_ask(spec: OpSpec, store: Store, exact: bool, rejected: list[Rejected], declared: str) -> Entry | None:
    """Searches here, and after a miss asks the remotes. Raises what `search` raises, unless a remote has an entry."""
    began, has_asked = time.time(), False

    def ask(is_last_resort: bool = False) -> Entry | None:
        nonlocal has_asked
        if has_asked and not (is_last_resort and machine_folder.can_remember()):
            return None  # nothing that was remembered has answered
        has_asked = True
        return ask_remotes(spec, store, exact, rejected, began if is_last_resort else 0.0, declared)

    try:
        return search(spec, store, exact, None, rejected, ask, declared) or ask()
    except (ToolchainError, OpIncompatibleError):  # without a compiler for the target, a remote is the only way
        if entry := ask(True):
            return entry
        raise


def ask_remotes(
    spec: OpSpec, store: Store, exact: bool, rejected: list[Rejected], since: float = 0.0, declared: str = ""
) -> Entry | None:
    """Returns an entry that a remote has for the spec, after fetching it; None if no remote is configured or has one.

    A remote that had nothing is asked again if that was before `since`, in seconds since the epoch. What was fetched
    before is verified again if the trust file has changed, even if no remote is configured.
    """
    if settings.prebuilt() == "ignore" or not (settings.remotes() or os.path.isdir(store.layout.path(FETCHED))):
        return None
    from . import remotes  # not on the path of a hit

    into = remotes.bring(spec, store, exact, rejected, since)
    return search(spec, into, exact, None, rejected, declared=declared) if into else None


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
    declared: str = "",
) -> Entry | None:
    """Searches as `find` does, but appends to `rejected`, which is filled even if the look-up raises.

    `ask` asks the remotes. It is called before a compiler is looked for, unless the store has this description; and
    with True, as the last resort, if there is no compiler. The spec follows from the text `declared`, unless that is
    empty: see `warm.declaration`.
    """
    look_up = LookUp(spec, store, exact, find_toolchain, rejected, ask, declared)
    return look_up.remembered() or look_up.by_description() or look_up.from_remotes() or look_up.by_plan()


class LookUp:
    """The sources of one look-up in full. Each returns an entry that fits, or None. They are called in this order."""

    def __init__(
        self,
        spec: OpSpec,
        store: Store,
        exact: bool,
        find_toolchain: FindToolchain | None,
        rejected: list[Rejected],
        ask: Callable[[bool], Entry | None] | None,
        declared: str,
    ) -> None:
        self.lookup = memory.Lookup(spec, store, sources_of(spec, store), root_paths(spec), exact, declared)
        self.rejected, self._ask = rejected, ask
        self._find_toolchain = find_toolchain or toolchains.find_toolchain
        # A toolchain that a caller hands in is in no look-up's name.
        self._remembers = find_toolchain is None and not settings.paranoid()
        self._snapshot: memory.Snapshot | None = None

    def remembered(self) -> Entry | None:
        """Returns what an earlier look-up led to, if that did not depend on a toolchain's programs."""
        lookup = self.lookup
        is_named = self._remembers and bool(lookup.sources or lookup.spec.uses_host_compiler)
        return memory.recall(lookup, {}) if is_named else None

    def by_description(self) -> Entry | None:
        """Returns the entry of a layer whose own files are unchanged."""
        lookup, spec = self.lookup, self.lookup.spec
        self._is_kept = self._remembers and machine_folder.can_remember()
        if self._remembers and not self._is_kept and _is_read_only(lookup.store):
            # Neither this look-up nor a build can leave anything behind. The user's own store is searched as a layer
            # is: otherwise each process would have to find the compiler, and hash every header that it reads.
            lookup = self.lookup = lookup._replace(sources=[*lookup.sources, lookup.store.own])
        # Before the sources are located: what appears between the two is then seen at the next look-up.
        self._absent = memory.absent_paths(spec)
        self._description = description_key(spec) if lookup.sources else ""
        if self._is_kept:
            self._snapshot = memory.take_snapshot(lookup, self._description, self._absent)
        match = _match(lookup, self._description, self.rejected) if lookup.sources else None
        if match is None:
            return None
        match = match._replace(entry=memory.watching(match.entry, self._absent))
        if self._snapshot:
            memory.remember(lookup, {}, {}, match, self._snapshot)
        return match.entry

    def from_remotes(self) -> Entry | None:
        """Returns what a remote has, unless the store has this description."""
        if self._ask is None or not settings.remotes():
            return None
        self._description = self._description or description_key(self.lookup.spec)
        if os.path.isdir(self.lookup.store.layout.description(self._description)):
            return None
        entry = self._ask(False)
        return entry and memory.watching(entry, self._absent)

    def by_plan(self) -> Entry | None:
        """Returns the store's entry for the plan. Without a compiler there is no plan: then, for the description."""
        lookup, spec, programs = self.lookup, self.lookup.spec, dict[str, object]()
        snapshot = self._snapshot or memory.take_snapshot(lookup, self._description, self._absent)
        try:
            toolchain = self._find_toolchain(spec, lookup.store)
            if not spec.uses_host_compiler:  # the roots that it adds have to be known before anything is compared
                programs = {**toolchain.programs()}
                lookup = lookup._replace(root_paths=root_paths(spec, toolchain.root_paths()))
                if self._remembers and (entry := memory.recall(lookup, programs)):
                    return entry
            plan = make_plan(spec, toolchain)
        except ToolchainNotFoundError:
            return self._without_compiler(snapshot)
        match = lookup.store.get(plan.key, lookup.root_paths, self.rejected, abi.interface_problem)
        if match is None:
            return None
        match = memory.with_compiler(match, toolchain.programs(), snapshot)
        memory.note_use(lookup.store, match.pointer)
        if self._is_kept:
            memory.remember(lookup, programs, toolchain.programs(), match, snapshot)
        return match.entry

    def _without_compiler(self, snapshot: memory.Snapshot) -> Entry | None:
        """Returns an entry that this user built before and that fits the description, or what a remote has now."""
        lookup, store = self.lookup, self.lookup.store
        description = self._description or description_key(lookup.spec)
        match = _match(lookup._replace(sources=[store.own]), description, self.rejected)
        if match is None:
            return self._ask(True) if self._ask else None
        memory.note_use(store, os.path.join(store.layout.description(description), match.entry.key))
        return memory.with_compiler(match, {}, snapshot).entry


def make_plan(spec: OpSpec, toolchain: Toolchain) -> BuildPlan:
    """Returns the build plan. Raises what `planner.make_plan` raises."""
    from opforge.builders import planner  # 14 ms that what is remembered does not need

    return planner.make_plan(spec, toolchain)


def _is_read_only(store: Store) -> bool:
    return settings.prebuilt() != "ignore" and not can_write(store.layout.path())


def _match(lookup: memory.Lookup, description: str, rejected: list[Rejected]) -> Match | None:
    """Returns a prebuilt entry of the sources, in order."""
    fit = fit_of(lookup.spec, lookup.exact, this_machine(lookup.spec.target.device))
    for source in lookup.sources:
        match = source.find(description, fit, lookup.root_paths, lookup.store.disk, rejected)
        if match:
            return match
    return None


def sources_of(spec: OpSpec, store: Store) -> list[Source]:
    """Returns where prebuilt entries are looked for, in order; nothing if OPFORGE_PREBUILT forbids it."""
    layers = [str(source.layout) for source in store.layers]
    return [*map(_source, warm.places(spec.package, store.layout.root, layers, store.owners))]


def package_sources(package: str, owners: Collection[int]) -> list[Source]:
    """Returns the layers inside an imported package; none if it carries no ops, or is no package."""
    return [*map(_source, warm.package_places(package, owners))]


def _source(place: warm.Place) -> Source:
    root, owners, bits, area = place
    return Source(Layout(root), owners, bits, area=area)


def add_other_descriptions(spec: OpSpec, store: Store, rejected: list[Rejected]) -> None:
    """Appends to `rejected` the prebuilt entries of this op that have another description, with what differs."""
    from opforge.cache.maintenance.explain import rejected_entries  # for an error alone

    paths, seen = root_paths(spec), {entry.where for entry in rejected}
    for source in sources_of(spec, store):
        if source.area == FETCHED:
            continue  # all entries of the store, most of which were built here
        others = rejected_entries(source.layout, spec.name, spec.target.device, paths, store.disk)
        rejected += [Rejected(folder, reason) for folder, reason in others if folder not in seen]


def printed_steps(spec: OpSpec, rejected: Callable[[], Sequence[Rejected]]) -> Callable[[int, int, str], None]:
    """Returns what prints the steps of a build in words. `rejected` returns the stored entries that do not fit."""
    from opforge.builders.waiting.steps import Steps  # for load(verbose=True) alone

    return Steps(spec.name, str(spec.target), rejected)


def shorten(error: BaseException, always: bool = False) -> None:
    """Ends the traceback of an error at the line that called opforge; see `tracebacks.shorten`."""
    tracebacks.shorten(error, always)
