"""Looks for an op that is built already: in remembered look-ups, in layers by description, in the store by plan."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from opforge.builders import toolchains
from opforge.builders.declaration import abi
from opforge.builders.declaration.description import description_key
from opforge.builders.declaration.machine import this_machine
from opforge.builders.declaration.op_spec import OpSpec, root_paths
from opforge.cache.layout import FETCHED
from opforge.cache.store import Match, Rejected, Sought, Store
from opforge.errors import ToolchainNotFoundError
from opforge.fast_path.library import Entry
from opforge.foundation import remembered_values_writer, settings
from opforge.foundation.files import can_write

from . import remembered_lookups
from .fit import fit_of, fit_of_prebuilt, fit_without_plan

if TYPE_CHECKING:
    from opforge.builders.declaration.build_plan import BuildPlan
    from opforge.builders.toolchains.toolchain import Toolchain

log = logging.getLogger("opforge")
_warned: set[str] = set()
"""The compilers that were missed in this process."""
FindToolchain = Callable[["OpSpec", "Store"], "Toolchain"]


def offered(spec: OpSpec, store: Store, exact: bool = False) -> Sought[str]:
    """Returns a line for the entry that a remote has for the spec; empty if there is none. Fetches no library."""
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
    """The steps of a look-up. Each returns an entry that fits, or None; `load_op.search` takes them in order.

    Rejected entries are in `rejected`, also after an error.
    """

    def __init__(
        self,
        spec: OpSpec,
        store: Store,
        exact: bool = False,
        find_toolchain: FindToolchain | None = None,
        declared: str = "",
        asks: bool = False,
    ) -> None:
        """Keeps the spec and where to look for it. The spec follows from the text `declared`, unless that is empty.

        A layer's entry for a lower CPU level is accepted too, unless `exact`. `asks` says whether the remotes may be
        asked for what is missing.
        """
        self.lookup = remembered_lookups.lookup_of(spec, store, exact, declared, asks)
        self.lacks_compiler = False
        """Whether `in_store` has found no compiler, and so could make no plan."""
        self._seen = list[Rejected]()
        self._find_toolchain = find_toolchain or toolchains.find_toolchain
        # A toolchain that a caller hands in is in no look-up's name.
        self._remembers = find_toolchain is None and not settings.paranoid()
        self._snapshot: remembered_lookups.Snapshot | None = None
        self._began, self._has_asked = time.time(), False

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """Every stored or offered entry that was seen and not taken, with the reason."""
        return tuple(dict.fromkeys(self._seen))

    def remembered(self) -> Entry | None:
        """Returns the entry of an earlier look-up, if it did not depend on a toolchain's programs."""
        lookup = self.lookup
        is_named = self._remembers and bool(lookup.sources or lookup.spec.uses_host_compiler)
        return remembered_lookups.remembered_entry(lookup, {}) if is_named else None

    def in_layers(self) -> Entry | None:
        """Returns the entry of a layer whose own files are unchanged."""
        lookup, spec = self.lookup, self.lookup.spec
        self._is_kept = self._remembers and remembered_values_writer.can_remember()
        if self._remembers and not self._is_kept and _is_read_only(lookup.store):
            # Neither this look-up nor a build can leave anything behind. The user's own store is searched as a layer
            # is: otherwise each process would have to find the compiler, and hash every header that it reads.
            lookup = self.lookup = lookup._replace(sources=[*lookup.sources, lookup.store.own])
        # Before the sources are located: what appears between the two is then seen at the next look-up.
        self._absent = remembered_lookups.absent_paths(spec)
        self._description = description_key(spec) if lookup.sources else ""
        if self._is_kept:
            self._snapshot = remembered_lookups.take_snapshot(lookup, self._description, self._absent)
        match = self._match(lookup, self._description) if lookup.sources else None
        if match is None:
            return None
        match = match._replace(entry=remembered_lookups.watching(match.entry, self._absent))
        if self._snapshot:
            remembered_lookups.remember(lookup, {}, {}, match, self._snapshot)
        return match.entry

    def in_store(self) -> Entry | None:
        """Returns the store's entry for the plan. Without a compiler there is no plan: then, for the description."""
        lookup, spec, programs = self.lookup, self.lookup.spec, dict[str, object]()
        snapshot = self._snapshot or remembered_lookups.take_snapshot(lookup, self._description, self._absent)
        try:
            toolchain = self._find_toolchain(spec, lookup.store)
            if not spec.uses_host_compiler:  # the roots that it adds have to be known before anything is compared
                programs = {**toolchain.programs()}
                lookup = lookup._replace(root_paths=root_paths(spec, toolchain.root_paths()))
                if self._remembers and (entry := remembered_lookups.remembered_entry(lookup, programs)):
                    return entry
            plan = make_plan(spec, toolchain)
        except ToolchainNotFoundError as error:
            return self._without_compiler(snapshot, error)
        match, rejected = lookup.store.get(plan.key, lookup.root_paths, abi.interface_problem)
        self._seen += rejected
        if match is None:
            return None
        match = remembered_lookups.with_compiler(match, toolchain.programs(), snapshot)
        remembered_lookups.note_use(lookup.store, match.pointer)
        if self._is_kept:
            remembered_lookups.remember(lookup, programs, toolchain.programs(), match, snapshot)
        return match.entry

    def _without_compiler(self, snapshot: remembered_lookups.Snapshot, reason: ToolchainNotFoundError) -> Entry | None:
        """Returns an entry that this user built before and that fits the description.

        `reason` is why there is no compiler. A line says so where an entry is used.
        """
        self.lacks_compiler, lookup, store = True, self.lookup, self.lookup.store
        description = self._description or description_key(lookup.spec)
        match = self._match(lookup._replace(sources=[store.own]), description)
        if match is None:
            return None
        if str(reason) not in _warned:
            _warned.add(str(reason))
            text = "%s: no %s was found (%s): an earlier build is used, with the same search variables and flags"
            log.warning(text, lookup.spec.name, reason.what, ", ".join(reason.searched))
        remembered_lookups.note_use(store, os.path.join(store.layout.description(description), match.entry.key))
        return remembered_lookups.with_compiler(match, {}, snapshot).entry

    def fetch(self, is_early: bool = False, is_last_resort: bool = False) -> Finder | None:
        """Fetches what a remote has; returns the look-up that finds it then. None if there is nothing new.

        The remotes are asked once. `is_early` is before a compiler is looked for, unless the store has an entry of this
        description. As the last resort, a remote that had nothing is asked again if that was before this look-up. What
        was fetched before is verified again if the trust file has changed, even if no remote is configured.
        """
        lookup, store = self.lookup, self.lookup.store
        is_over = self._has_asked and not (is_last_resort and remembered_values_writer.can_remember())
        if not lookup.asks or is_over or (is_early and not settings.remotes()):
            return None  # nothing that was remembered has answered
        if is_early:
            self._description = self._description or description_key(lookup.spec)
            if os.path.isdir(store.layout.description(self._description)):
                return None
        self._has_asked = True
        if settings.prebuilt() == "ignore" or not (settings.remotes() or os.path.isdir(store.layout.path(FETCHED))):
            return None
        from . import remotes  # not on the path of a hit

        filled, rejected = remotes.bring(lookup.spec, store, lookup.exact, self._began if is_last_resort else 0.0)
        self._seen += rejected
        if filled is None:
            return None
        again = Finder(lookup.spec, filled, lookup.exact, declared=lookup.declared)
        again._seen = self._seen
        return again

    def _match(self, lookup: remembered_lookups.Lookup, description: str) -> Match | None:
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


def other_descriptions(spec: OpSpec, store: Store, rejected: Iterable[Rejected]) -> list[Rejected]:
    """Returns the prebuilt entries of this op that have another description, with what differs, but `rejected`."""
    from opforge.cache.maintenance.explain import rejected_entries  # for an error alone

    paths, seen, found = root_paths(spec), {entry.where for entry in rejected}, list[Rejected]()
    for source in remembered_lookups.sources_of(spec, store):
        if source.area == FETCHED:
            continue  # all entries of the store, most of which were built here
        others = rejected_entries(source.layout, spec.name, spec.target.device, paths, store.disk)
        found += [Rejected(folder, reason) for folder, reason in others if folder not in seen]
    return found
