"""Where entries are found: the user's store, and the layers that are searched before it. `admit.py` adds entries."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from opforge.fast_path.library import PACKAGE_LAYER, Entry, integrity_problem
from opforge.foundation.remembered_values import UNREADABLE

from .filesystem.disk import Disk
from .filesystem.packages import KEPT_IN, PackageFiles
from .keys import key_of
from .layout import FETCHED, LISTED, Layout
from .records import fetched_offer
from .records.entry import Stamped, compared_inputs, read_record
from .records.inputs import Inputs
from .records.trusted_trees import reassigned
from .records.validity import Observation
from .staging import quarantine

log = logging.getLogger("opforge.cache")
NO_RECORD = "its record cannot be read"
_warned: set[str] = set()
NOT_BUILT = "nothing was built from this plan yet"


class Rejected(NamedTuple):
    """A stored entry that was looked at and not used."""

    where: str
    reason: str

    def __str__(self) -> str:
        """Returns both, as one line."""
        return f"{self.where}: {self.reason}"


class RejectedRecord(Rejected):
    """A stored or offered entry whose record was read and does not fit."""

    peaks: tuple[tuple[str, int], ...] = ()
    """The memory that its compilers needed, by source."""

    @classmethod
    def of(cls, where: str, reason: str, record: Mapping[str, Any]) -> RejectedRecord:
        """Returns the rejection of an entry with this record."""
        rejected = cls(where, reason)
        rejected.peaks = peaks_in(record)
        return rejected


def peaks_in(record: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Returns the memory that compilers needed, by source, as a record states it."""
    peaks = record.get("peaks")
    pairs = peaks.items() if isinstance(peaks, dict) else ()  # no schema on the path of a hit
    return tuple((source, peak) for source, peak in pairs if type(peak) is int and peak > 0)


class Fit(NamedTuple):
    """Whether an entry can be used for what is requested."""

    problem: str = ""
    """Why not; empty if it can be used."""
    rank: int = 0
    """Of the entries that can be used, the one with the highest rank is used."""


class Match(NamedTuple):
    """An entry whose inputs are unchanged, and their stamps."""

    entry: Entry
    stamped: Stamped
    pointer: str = ""
    """The file whose time says when the entry was last used; empty in a layer."""


Value = TypeVar("Value")
Sought = tuple[Value, tuple[Rejected, ...]]
"""The result of a source, and each rejected entry, offer or source with the reason."""


class Source(NamedTuple):
    """A folder of entries in which prebuilt ones are looked for by their description: a layer, or a wheel's."""

    layout: Layout
    owners: Collection[int]
    """The user ids that its files may belong to."""
    write_bits: int = 0
    """The mode bits by which other users may write its libraries: those of the package's code beside them."""
    area: str = LISTED
    """The folder of the pointers by which entries are found; FETCHED for those that came from a remote."""
    origin: str = ""
    """The origin of the entries found in it, if it is not the folder itself."""

    def pointers(self, description: str) -> str:
        """Returns the folder that lists the entries of a description."""
        return self.layout.path(self.area, description)

    def find(
        self,
        description: str,
        fit: Callable[[Mapping[str, Any]], Fit],
        root_paths: Mapping[str, str],
        disk: Disk,
    ) -> Sought[Match | None]:
        """Returns the best entry with this description that fits and whose own files are unchanged.

        Args:
            description: The key of the op's description.
            fit: Returns whether an entry with this record can be used, and its rank.
            root_paths: The paths of the roots on this machine.
            disk: The disk.
        """
        seen = Observation(root_paths, disk)
        ranked, rejected = self._ranked(description, fit)
        for entry in ranked:
            damage: str | None = NO_RECORD
            try:
                inputs = compared_inputs(entry.record)
                stamped = seen.stamps(*inputs)
                problem = seen.problem(*inputs)
                damage = None if problem else self.problem(entry)
                problem = problem or damage
                pointer, origin = "", entry.origin
                if self.area == FETCHED and not problem:
                    pointer = os.path.join(self.pointers(description), entry.key)
                    offer = fetched_offer.read(pointer)
                    problem, origin = offer.problem(disk), offer.origin
            except UNREADABLE:  # a hit compares no record with the whole schema
                problem = NO_RECORD
            if not problem:
                match = Match(entry._replace(watched=stamped.watched, origin=origin), stamped, pointer)
                return match, tuple(rejected)
            if problem == damage:
                self._warn(entry.folder, problem)
            rejected.append(RejectedRecord.of(entry.folder, problem, entry.record))
        return None, tuple(rejected)

    def _ranked(self, description: str, fit: Callable[[Mapping[str, Any]], Fit]) -> tuple[list[Entry], list[Rejected]]:
        """Returns the entries with this description that fit, the best first, and those that do not."""
        ranked, rejected = list[tuple[int, Entry]](), list[Rejected]()
        try:
            names = sorted(os.listdir(self.pointers(description)))
        except OSError as error:
            return [], self._without_pointers(error)
        for name in names:
            entry = self.read(name)
            if entry is None:
                rejected.append(Rejected(self.layout.entry(name), NO_RECORD))
                self._warn(self.layout.entry(name), NO_RECORD)
                continue
            try:
                problem, rank = fit(entry.record)
            except UNREADABLE:  # a hit compares no record with the whole schema
                problem, rank = NO_RECORD, 0
            if problem:
                rejected.append(RejectedRecord.of(entry.folder, problem, entry.record))
            else:
                ranked.append((rank, entry))
        return [entry for _rank, entry in sorted(ranked, key=lambda pair: (-pair[0], pair[1].key))], rejected

    def _warn(self, folder: str, problem: str) -> None:
        """Logs, once a process, that what an installed package carries is not used: else it would be built unseen."""
        if os.path.basename(self.layout.root) != PACKAGE_LAYER or folder in _warned:
            return
        _warned.add(folder)
        text = "%s is not used: %s. Reinstall its package, with copies if its files are links (uv: --link-mode copy)."
        log.warning(text, folder, problem)

    def _without_pointers(self, error: OSError) -> list[Rejected]:
        if self.area == FETCHED:
            return []  # what a remote says of it comes later
        if not isinstance(error, FileNotFoundError):
            reason = f"{error.filename} cannot be read ({error.strerror})"
        elif os.path.isdir(self.layout.root):
            reason = "holds no entry for this description"
        else:
            reason = "there is no such folder"
        return [Rejected(self.layout.root, reason)]

    def read(self, name: str) -> Entry | None:
        """Returns an entry by its record, with its library unchecked; None if there is no valid record."""
        folder = self.layout.entry(name)
        try:
            record = read_record(folder)
        except (OSError, ValueError):
            return None
        return None if record is None else Entry(name, folder, record, self.origin or self.layout.root)

    def problem(self, entry: Entry) -> str | None:
        """Returns why an entry may not be loaded now: its library is damaged, or others could change it. Or None."""
        return integrity_problem(entry, self.owners, allowed_write_bits=self.write_bits)


class Store:
    """The user's writable store, with the read-only layers that are searched before it."""

    def __init__(
        self, root: str, owners: Collection[int], layers: tuple[str, ...] = (), disk: Disk | None = None
    ) -> None:
        self.layout = Layout(root)
        self.owners = owners
        self.layers = tuple(Source(Layout(layer), owners) for layer in layers)
        self.own = Source(self.layout, owners, origin="cache")
        self.disk = disk or Disk()

    @property
    def fetched(self) -> Source:
        """Where entries that came from a remote are looked for."""
        return Source(self.layout, self.owners, area=FETCHED)

    def get(
        self,
        plan_key: str,
        root_paths: Mapping[str, str],
        accept: Callable[[Mapping[str, Any]], str | None] = lambda _record: None,
    ) -> Sought[Match | None]:
        """Returns the entry of this plan whose inputs are unchanged, after checking its library.

        Every input is hashed: `builders/lookup/remembered_lookups.py` remembers the outcome. `accept` returns why an
        entry with this record is not used, or None.
        """
        seen, rejected = Observation(root_paths, self.disk), list[Rejected]()
        pointers = self._pointers(plan_key)
        if not pointers:
            rejected.append(Rejected(self.layout.root, NOT_BUILT))
        for pointer in pointers:
            entry = self.own.read(os.path.basename(pointer))
            if entry is None:
                rejected.append(Rejected(self.layout.entry(os.path.basename(pointer)), NO_RECORD))
                continue
            try:
                stamped, problem = self._compare(entry, seen, root_paths)
                problem = problem or accept(entry.record) or self._damage(entry)
            except UNREADABLE:  # a hit compares no record with the whole schema
                problem = "the record of its inputs cannot be read"
            if not problem:
                return Match(entry._replace(watched=stamped.watched), stamped, pointer), tuple(rejected)
            rejected.append(RejectedRecord.of(entry.folder, problem, entry.record))
        return None, tuple(rejected)

    def _compare(self, entry: Entry, seen: Observation, root_paths: Mapping[str, str]) -> tuple[Stamped, str | None]:
        """Returns the stamps of an entry's inputs, and what has changed. Raises one of UNREADABLE.

        The op's own files are compared first: they are few, and of the versions of an op they rule out all but one.
        """
        own = entry.record["inputs"]
        stamped, problem = seen.stamps(own), seen.problem(own)
        if problem:
            return stamped, problem
        packages = PackageFiles(self.disk, self.layout.path(KEPT_IN))
        recorded = Inputs.from_json(entry.build()["inputs"])
        if key_of(recorded.to_json()) != entry.record["inputs_key"]:
            raise ValueError("it was built from other files")  # another entry's, or damaged
        inputs = reassigned(recorded, root_paths, packages).to_json()
        return seen.stamps(inputs), seen.problem(inputs)

    def _pointers(self, plan_key: str) -> list[str]:
        """Returns the paths of a plan's pointers to entries, the last used first."""
        folder = self.layout.plan(plan_key)
        try:
            with os.scandir(folder) as files:
                times = [(-file.stat(follow_symlinks=False).st_mtime_ns, file.path) for file in files]
        except OSError:
            return []
        return [path for _time, path in sorted(times)]

    def pointer(self, plan_key: str, entry_key: str) -> str:
        """Returns the path of the file by which a plan names an entry."""
        return os.path.join(self.layout.plan(plan_key), entry_key)

    def _damage(self, entry: Entry) -> str | None:
        """Returns why the entry's library may not be loaded, after quarantining the entry; None if it may."""
        problem = self.own.problem(entry)
        if problem and os.path.lexists(entry.folder):
            quarantine(self.layout, entry.key, problem)
        return problem
