"""Looks for an op that is built already: in what is remembered, in layers by description, in the store by plan."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from opforge import events, machine_folder, settings, tracebacks
from opforge.builders import toolchains
from opforge.builders.declaration import abi
from opforge.builders.declaration.description import description_key
from opforge.builders.declaration.machine import this_machine
from opforge.builders.declaration.op_spec import root_paths
from opforge.cache.current import current_store
from opforge.cache.layout import FETCHED, UNSIGNED, Layout
from opforge.cache.store import Rejected, Sought, Source
from opforge.errors import OpIncompatibleError, PrebuiltRequiredError, ToolchainError, ToolchainNotFoundError
from opforge.machine_folder import can_write
from opforge.settings import useless
from opforge.warm import lookup as warm

from . import memory
from .fit import fit_of, fit_of_prebuilt, fit_without_plan

if TYPE_CHECKING:
    from opforge.builders.declaration.build_plan import BuildPlan
    from opforge.builders.declaration.op_spec import OpSpec
    from opforge.builders.toolchains.toolchain import Toolchain
    from opforge.cache.store import Match, Store
    from opforge.warm.library import Entry

log = logging.getLogger("opforge")
_warned: set[str] = set()
"""The compilers that were missed in this process."""
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
    finder = Finder(spec, store or current_store(), exact, find_toolchain)
    entry = finder.find()
    return Found(entry, finder.rejected)


def log_load(op: str, entry: Entry, seconds: float) -> None:
    """Logs that an entry was loaded."""
    events.emit("load", op=op, seconds=seconds, path=entry.library, origin=entry.origin)


def stored_entry(finder: Finder, force: bool = False, counts: bool = True) -> Entry | None:
    """Returns the entry that makes a build unnecessary, or None. The remotes are asked too.

    `force` looks for nothing. Logs the event `hit` or `miss`; without `counts` no miss, because another look-up follows
    that does. Raises PrebuiltRequiredError if there is no entry and building is forbidden.
    """
    began, spec, store = time.perf_counter(), finder.asked.spec, finder.asked.store
    entry = None if force else finder.find_or_fetch()
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
        rejected = [*finder.rejected, *other_descriptions(spec, store, finder.rejected)]
        raise PrebuiltRequiredError(spec.name, str(spec.target), [*map(str, rejected)])
    reasons = ["it was requested"] if force else [*map(str, finder.rejected)]
    if counts:
        events.emit("miss", op=spec.name, seconds=time.perf_counter() - began, reasons=reasons)
    return None


def offered(spec: OpSpec, store: Store, exact: bool = False) -> Sought[str]:
    """Returns what a remote would give for the spec, as one line; empty if nothing. Fetches no library."""
    if settings.prebuilt() == "ignore" or not settings.remotes():
        return "", ()
    from . import remotes  # not on the path of a hit

    request, rejected = remotes.request_for(spec, store, exact), list[Rejected]()
    for source in remotes.sources():
        line, others = source.offered(request)
        rejected += others
        if line:
            return line, tuple(rejected)
    return "", tuple(rejected)


class Finder:
    """One look-up in full: its sources are asked in order, and each gives an entry that fits, or None.

    What was seen and not taken is in `rejected`, also after an error.
    """

    def __init__(
        self,
        spec: OpSpec,
        store: Store,
        exact: bool = False,
        find_toolchain: FindToolchain | None = None,
        declared: str = "",
    ) -> None:
        """Takes what is looked for. The spec follows from the text `declared`, unless that is empty.

        A layer's entry for a lower CPU level is accepted too, unless `exact`.
        """
        self.asked = memory.Lookup(spec, store, sources_of(spec, store), root_paths(spec), exact, declared)
        self._seen = list[Rejected]()
        self._find_toolchain = find_toolchain or toolchains.find_toolchain
        # A toolchain that a caller hands in is in no look-up's name.
        self._remembers = find_toolchain is None and not settings.paranoid()
        self._snapshot: memory.Snapshot | None = None
        self._began, self._asks, self._has_asked = time.time(), False, False

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """Every stored or offered entry that was seen and not taken, with the reason."""
        return tuple(dict.fromkeys(self._seen))

    def find(self) -> Entry | None:
        """Returns the entry that fits, or None. Raises what `find` raises."""
        return self.remembered() or self.by_description() or self.from_remotes() or self.by_plan()

    def find_or_fetch(self) -> Entry | None:
        """Searches as `find` does, and asks the remotes: before a compiler is looked for, or as the last resort.

        Raises what `find` raises, unless a remote has an entry.
        """
        self._asks = True
        self.asked = self.asked._replace(asks=True)
        try:
            return self.find() or self._ask()
        except (ToolchainError, OpIncompatibleError):  # without a compiler for the target, a remote is the only way
            if entry := self._ask(is_last_resort=True):
                return entry
            raise

    def _ask(self, is_last_resort: bool = False) -> Entry | None:
        """Returns an entry that a remote has, after fetching it; None if no remote is configured or has one.

        They are asked once. As the last resort, a remote that had nothing is asked again if that was before this
        look-up. What was fetched before is verified again if the trust file has changed, even if no remote is
        configured.
        """
        if self._has_asked and not (is_last_resort and machine_folder.can_remember()):
            return None  # nothing that was remembered has answered
        self._has_asked = True
        fetched = os.path.isdir(self.asked.store.layout.path(FETCHED))
        if settings.prebuilt() == "ignore" or not (settings.remotes() or fetched):
            return None
        from . import remotes  # not on the path of a hit

        asked, since = self.asked, self._began if is_last_resort else 0.0
        store, rejected = remotes.bring(asked.spec, asked.store, asked.exact, since)
        self._seen += rejected
        if store is None:
            return None
        again = Finder(asked.spec, store, asked.exact, declared=asked.declared)
        try:
            return again.find()
        finally:
            self._seen += again.rejected

    def remembered(self) -> Entry | None:
        """Returns what an earlier look-up led to, if that did not depend on a toolchain's programs."""
        lookup = self.asked
        is_named = self._remembers and bool(lookup.sources or lookup.spec.uses_host_compiler)
        return memory.recall(lookup, {}) if is_named else None

    def by_description(self) -> Entry | None:
        """Returns the entry of a layer whose own files are unchanged."""
        lookup, spec = self.asked, self.asked.spec
        self._is_kept = self._remembers and machine_folder.can_remember()
        if self._remembers and not self._is_kept and _is_read_only(lookup.store):
            # Neither this look-up nor a build can leave anything behind. The user's own store is searched as a layer
            # is: otherwise each process would have to find the compiler, and hash every header that it reads.
            lookup = self.asked = lookup._replace(sources=[*lookup.sources, lookup.store.own])
        # Before the sources are located: what appears between the two is then seen at the next look-up.
        self._absent = memory.absent_paths(spec)
        self._description = description_key(spec) if lookup.sources else ""
        if self._is_kept:
            self._snapshot = memory.take_snapshot(lookup, self._description, self._absent)
        match = self._match(lookup, self._description) if lookup.sources else None
        if match is None:
            return None
        match = match._replace(entry=memory.watching(match.entry, self._absent))
        if self._snapshot:
            memory.remember(lookup, {}, {}, match, self._snapshot)
        return match.entry

    def from_remotes(self) -> Entry | None:
        """Returns what a remote has, if remotes are asked, unless the store has this description."""
        if not (self._asks and settings.remotes()):
            return None
        self._description = self._description or description_key(self.asked.spec)
        if os.path.isdir(self.asked.store.layout.description(self._description)):
            return None
        entry = self._ask()
        return entry and memory.watching(entry, self._absent)

    def by_plan(self) -> Entry | None:
        """Returns the store's entry for the plan. Without a compiler there is no plan: then, for the description."""
        lookup, spec, programs = self.asked, self.asked.spec, dict[str, object]()
        snapshot = self._snapshot or memory.take_snapshot(lookup, self._description, self._absent)
        try:
            toolchain = self._find_toolchain(spec, lookup.store)
            if not spec.uses_host_compiler:  # the roots that it adds have to be known before anything is compared
                programs = {**toolchain.programs()}
                lookup = lookup._replace(root_paths=root_paths(spec, toolchain.root_paths()))
                if self._remembers and (entry := memory.recall(lookup, programs)):
                    return entry
            plan = make_plan(spec, toolchain)
        except ToolchainNotFoundError as error:
            return self._without_compiler(snapshot, error)
        match, rejected = lookup.store.get(plan.key, lookup.root_paths, abi.interface_problem)
        self._seen += rejected
        if match is None:
            return None
        match = memory.with_compiler(match, toolchain.programs(), snapshot)
        memory.note_use(lookup.store, match.pointer)
        if self._is_kept:
            memory.remember(lookup, programs, toolchain.programs(), match, snapshot)
        return match.entry

    def _without_compiler(self, snapshot: memory.Snapshot, reason: ToolchainNotFoundError) -> Entry | None:
        """Returns an entry that this user built before and that fits the description, or what a remote has now.

        `reason` is why there is no compiler. A line says so where an entry is used.
        """
        lookup, store = self.asked, self.asked.store
        description = self._description or description_key(lookup.spec)
        match = self._match(lookup._replace(sources=[store.own]), description)
        if match is None:
            return self._ask(is_last_resort=True) if self._asks else None
        if str(reason) not in _warned:
            _warned.add(str(reason))
            text = "%s: no %s was found (%s): what was built before is used, with the same search variables and flags"
            log.warning(text, lookup.spec.name, reason.what, ", ".join(reason.searched))
        memory.note_use(store, os.path.join(store.layout.description(description), match.entry.key))
        return memory.with_compiler(match, {}, snapshot).entry

    def _match(self, lookup: memory.Lookup, description: str) -> Match | None:
        """Returns a prebuilt entry of the sources, in order."""
        fits = fit_of(lookup.spec, lookup.exact, this_machine(lookup.spec.target.device))
        for source in lookup.sources:
            is_own = source == lookup.store.own  # its entries have no plan here: other variables would be another plan
            fit = fit_without_plan(lookup.spec, source.layout, fits) if is_own else fit_of_prebuilt(lookup.spec, fits)
            match, rejected = source.find(description, fit, lookup.root_paths, lookup.store.disk)
            self._seen += rejected
            if match:
                return match
        return None


def make_plan(spec: OpSpec, toolchain: Toolchain) -> BuildPlan:
    """Returns the build plan. Raises what `planner.make_plan` raises."""
    from opforge.builders import planner  # 14 ms that what is remembered does not need

    return planner.make_plan(spec, toolchain)


def _is_read_only(store: Store) -> bool:
    return settings.prebuilt() != "ignore" and not can_write(store.layout.path())


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


def other_descriptions(spec: OpSpec, store: Store, rejected: Iterable[Rejected]) -> list[Rejected]:
    """Returns the prebuilt entries of this op that have another description, with what differs, but `rejected`."""
    from opforge.cache.maintenance.explain import rejected_entries  # for an error alone

    paths, seen, found = root_paths(spec), {entry.where for entry in rejected}, list[Rejected]()
    for source in sources_of(spec, store):
        if source.area == FETCHED:
            continue  # all entries of the store, most of which were built here
        others = rejected_entries(source.layout, spec.name, spec.target.device, paths, store.disk)
        found += [Rejected(folder, reason) for folder, reason in others if folder not in seen]
    return found


def printed_steps(spec: OpSpec, rejected: Callable[[], Sequence[Rejected]]) -> Callable[[int, int, str], None]:
    """Returns what prints the steps of a build in words. `rejected` returns the stored entries that do not fit."""
    from opforge.builders.waiting.steps import Steps  # for load(verbose=True) alone

    return Steps(spec.name, str(spec.target), rejected)


def shorten(error: BaseException, always: bool = False) -> None:
    """Ends the traceback of an error at the line that called opforge; see `tracebacks.shorten`."""
    tracebacks.shorten(error, always)
