"""The store: find what was built under the same inputs, or build it once and keep it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .filesystem.disk import Disk
from .filesystem.files import UNREADABLE, read_json
from .filesystem.trust import Shipped
from .keys import place_of
from .layout import Layout
from .records import stat_record
from .records.entry import MANIFEST, Entry, damage, is_record
from .records.inputs import Inputs

log = logging.getLogger("opforge.cache")
USE_NOTED_NS = 3_600_000_000_000
TICKETS_KEPT = 16
"""How many tickets a plan keeps for one place: so many states of its sources can be gone back to without hashing."""


class Rejected(NamedTuple):
    """A stored entry that was looked at and not taken."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class Store:
    """One writable store, with read-only layers before it."""

    def __init__(
        self, root: str, owners: Collection[int], layers: tuple[str, ...] = (), disk: Disk | None = None
    ) -> None:
        self.layout = Layout(root)
        self.layers = tuple(Layout(layer) for layer in layers)
        self.owners = owners
        self.disk = disk or Disk()

    # -- looking up -----------------------------------------------------------------------------------------------

    def match(
        self,
        description: str,
        unfit: Callable[[Mapping[str, Any]], str | None],
        roots: Mapping[str, str],
        vouched: Collection[str],
        trace: list[Rejected],
        own: bool = False,
        shipped: Sequence[Shipped] = (),
    ) -> Entry | None:
        """A prebuilt entry of a read-only layer that answers `description` and fits this machine.

        `unfit` says why an entry's binary record does not fit, or None. Files below the roots in `vouched` (torch's,
        the system's) may differ from those a layer's entry was built from; the op's own may not. The `shipped` layers
        come after the store's. With `own`, the user's store is searched instead, and there no file may differ. Every
        rejection goes into `trace`.
        """
        places = [(layer, self.owners, 0) for layer in self.layers]
        places += [(Layout(one.root), {*self.owners, one.owner}, one.writable) for one in shipped]
        for layer, owners, writable in [(self.layout, self.owners, 0)] if own else places:
            try:
                results = sorted(os.listdir(layer.description(description)))
            except OSError:
                there = os.path.isdir(layer.root)
                empty = Rejected(
                    layer.root, "holds no entry for this description" if there else "there is no such folder"
                )
                trace += [empty] if empty not in trace else []  # asked for each level of a processor
                continue
            for result in results:
                entry = self.read_entry(layer, result, layer.root)
                inputs = None if entry is None else _inputs_of(entry)
                if entry is None or inputs is None:
                    trace.append(Rejected(layer.entry(result), "its manifest cannot be read"))
                    continue
                if layer is not self.layout:
                    inputs = inputs.without(vouched)
                try:
                    ticket = stat_record.make(result, inputs, {}, roots, self.disk)
                    verdict = stat_record.holds_by_content(
                        stat_record.BLANK, inputs, roots, self.disk, {}, trust_stamps=False
                    )
                    problem = unfit(entry.binary) or verdict.reason or damage(entry, owners, writable=writable)
                except UNREADABLE:
                    problem = "its manifest cannot be read"
                if not problem:
                    return entry._replace(ticket=ticket)
                trace.append(Rejected(entry.folder, problem))
        return None

    def get(
        self, plan_key: str, roots: Mapping[str, str], trace: list[Rejected], paranoid: bool = False
    ) -> Entry | None:
        """The entry of this plan whose inputs are as they are now, checked, or None. `trace` gets every rejection."""
        folder = self.layout.plan(plan_key)
        try:
            names = os.listdir(folder)
        except OSError:
            trace.append(Rejected(self.layout.root, "nothing was built from this plan yet"))
            return None
        mine = place_of(roots) + ".json"
        names.sort(key=lambda name: not name.endswith(mine))
        found = []
        for name in names:
            ticket = _read_ticket(os.path.join(folder, name))
            if ticket is None:
                continue
            if not paranoid and name.endswith(mine) and _holds(ticket, roots, self.disk):
                taken = self.take(ticket, (os.path.join(folder, name),))
                if taken:
                    return taken
            found.append((name, ticket))
        digests: dict[str, str | None] = {}
        seen: set[str] = set()
        for name, ticket in found:
            if ticket["result"] in seen:
                continue
            seen.add(ticket["result"])
            entry = self._compare(plan_key, ticket, name.endswith(mine) and not paranoid, roots, digests, trace)
            if entry:
                return entry
        return None

    def _compare(
        self,
        plan_key: str,
        ticket: Mapping[str, Any],
        trust_stamps: bool,
        roots: Mapping[str, str],
        digests: dict[str, str | None],
        trace: list[Rejected],
    ) -> Entry | None:
        """Look at one ticket by content, and renew its stamps where it holds."""
        entry = self.read_entry(self.layout, ticket["result"], "cache")
        if entry is None:
            trace.append(Rejected(self.layout.entry(ticket["result"]), "its manifest cannot be read"))
            return None
        inputs = _inputs_of(entry)
        if inputs is None:
            trace.append(Rejected(entry.folder, "its manifest cannot be read"))
            return None
        try:
            renewed = stat_record.make(entry.result, inputs, {**entry.binary, **_receipt(ticket)}, roots, self.disk)
            verdict = stat_record.holds_by_content(ticket, inputs, roots, self.disk, digests, trust_stamps)
        except UNREADABLE:
            trace.append(Rejected(entry.folder, "its ticket or its manifest cannot be read"))
            return None
        if not verdict.holds:
            trace.append(Rejected(entry.folder, verdict.reason))
            return None
        checked = self._checked(entry, trace)
        if checked:
            self.write_ticket(plan_key, renewed, roots)
            return checked._replace(ticket=renewed)
        return None

    def take(self, ticket: Mapping[str, Any], files: Sequence[str]) -> Entry | None:
        """The entry of a ticket that holds, if its library is as the ticket says; notes the use in the `files`.

        Where it is not, the ticket may be what is damaged: the entry's own manifest is to decide.
        """
        result = ticket["result"]
        entry = Entry(result, self.layout.entry(result), ticket["binary"], "cache", ticket)
        if damage(entry, self.owners) is not None:
            return None
        self._note_use(files)
        return entry

    def _note_use(self, files: Sequence[str]) -> None:
        """Stamp them with the time of their use, at most once an hour: what is used least is evicted first.

        The first speaks for the others, which are used whenever it is.
        """
        try:
            if self.disk.now_ns() - os.stat(files[0]).st_mtime_ns > USE_NOTED_NS:
                for path in files:
                    os.utime(path)
        except OSError:
            return  # a read-only store, or a ticket that has just been replaced

    def read_entry(self, layout: Layout, result: str, origin: str) -> Entry | None:
        """An entry as its manifest tells it, unchecked; None where there is none, or no proper manifest."""
        try:
            binary = read_json(os.path.join(layout.entry(result), MANIFEST))["binary"]
            return Entry(result, layout.entry(result), binary, origin) if is_record(binary) else None
        except UNREADABLE:
            return None

    def _checked(self, entry: Entry, trace: list[Rejected]) -> Entry | None:
        """The entry, if its library is whole; otherwise it is set aside."""
        problem = damage(entry, self.owners)
        if problem is None:
            return entry
        trace.append(Rejected(entry.folder, problem))
        if os.path.lexists(entry.folder):
            from .staging import set_aside

            set_aside(self.layout, entry.result, problem)
        return None

    def ticket_path(self, plan_key: str, result: str, roots: Mapping[str, str]) -> str:
        """Where the ticket of a plan and a result lies, for roots that lie here."""
        return os.path.join(self.layout.plan(plan_key), f"{result}-{place_of(roots)}.json")

    def write_ticket(self, plan_key: str, ticket: Mapping[str, Any], roots: Mapping[str, str]) -> None:
        """Keep the stamps under which an entry holds. Failing to costs the next look-up some hashing, nothing else."""
        from .filesystem.files import make_folder, write_file

        folder, place = self.layout.plan(plan_key), place_of(roots) + ".json"
        try:
            make_folder(folder)
            write_file(self.ticket_path(plan_key, ticket["result"], roots), json.dumps(ticket).encode())
            old = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(place)]
            if len(old) > TICKETS_KEPT:
                for path in sorted(old, key=lambda one: os.stat(one).st_mtime_ns)[:-TICKETS_KEPT]:
                    os.unlink(path)
        except OSError as error:
            log.debug("the ticket of %s was not written: %s", plan_key, error)


def _read_ticket(path: str) -> dict[str, Any] | None:
    try:
        ticket = read_json(path)
        return ticket if is_ticket(ticket) else None
    except UNREADABLE:
        return None


def is_ticket(ticket: Any) -> bool:
    """Whether this is a ticket of this format, and names an entry. Raises one of UNREADABLE where it is no object."""
    known = ticket["format"] == stat_record.FORMAT and is_record(ticket["binary"])
    return known and ticket["result"] == os.path.basename(ticket["result"]) not in ("", ".", "..")


def _holds(ticket: Mapping[str, Any], roots: Mapping[str, str], disk: Disk) -> bool:
    try:
        return stat_record.holds_by_stamps(ticket, roots, disk)
    except UNREADABLE:
        return False


def _receipt(ticket: Mapping[str, Any]) -> dict[str, Any]:
    """The stamp of the library's last full check, which only tickets know."""
    return {"stamp": ticket["binary"]["stamp"]} if "stamp" in ticket["binary"] else {}


def _inputs_of(entry: Entry) -> Inputs | None:
    try:
        return Inputs.from_json(entry.manifest()["inputs"])
    except UNREADABLE:
        return None
