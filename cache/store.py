"""The store: finds what was built from the same inputs. `publish.py` is its other half: it builds and keeps."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .filesystem.disk import Disk
from .filesystem.files import UNREADABLE, make_folder, read_json, write_file
from .filesystem.trust import PackageLayer
from .layout import Layout
from .records import validity
from .records.entry import MANIFEST, Entry, integrity_problem, is_binary_record

if TYPE_CHECKING:
    from .records.inputs import Inputs

log = logging.getLogger("opforge.cache")
USE_INTERVAL_NS = 3_600_000_000_000
"""How long after a noted use of an entry the next one is noted."""
KEPT_STAT_RECORDS = 16
"""How many stat records a plan keeps for the same root paths. So many states of its sources can be returned to without
hashing."""


class Rejected(NamedTuple):
    """A stored entry that was looked at and not used."""

    where: str
    reason: str

    def __str__(self) -> str:
        """Returns both, as one line."""
        return f"{self.where}: {self.reason}"


class Store:
    """One writable store, with read-only layers that are searched before it."""

    def __init__(
        self, root: str, owners: Collection[int], layers: tuple[str, ...] = (), disk: Disk | None = None
    ) -> None:
        self.layout = Layout(root)
        self.layers = tuple(Layout(layer) for layer in layers)
        self.owners = owners
        self.disk = disk or Disk()

    def match(
        self,
        description: str,
        host_problem: Callable[[Mapping[str, Any]], str | None],
        root_paths: Mapping[str, str],
        trusted_roots: Collection[str],
        rejected: list[Rejected],
        own: bool = False,
        package_layers: Sequence[PackageLayer] = (),
    ) -> Entry | None:
        """Returns a prebuilt entry of a read-only layer for a description, or None if none fits this machine.

        Args:
            description: The key of the op's description.
            host_problem: Returns why a binary record does not fit this machine, or None.
            root_paths: The paths of the roots on this machine.
            trusted_roots: Roots whose files may differ from those that an entry was built from, such as torch's and
                the system's: the entry's requirements cover them. The op's own files may not differ.
            rejected: Gets every entry that does not fit, with the reason.
            own: Search the user's store instead of the layers. There no file may differ.
            package_layers: Layers of installed packages, searched after the store's own.
        """
        searched = [(layer, self.owners, 0) for layer in self.layers]
        searched += [(Layout(layer.root), {*self.owners, layer.owner}, layer.write_bits) for layer in package_layers]
        for layer, owners, write_bits in [(self.layout, self.owners, 0)] if own else searched:
            try:
                keys = sorted(os.listdir(layer.description(description)))
            except OSError:
                exists = os.path.isdir(layer.root)
                empty = Rejected(
                    layer.root, "holds no entry for this description" if exists else "there is no such folder"
                )
                rejected += [empty] if empty not in rejected else []  # a layer is searched once for each CPU level
                continue
            for key in keys:
                entry = self.read_entry(layer, key, layer.root)
                inputs = None if entry is None else _inputs_of(entry)
                if entry is None or inputs is None:
                    rejected.append(Rejected(layer.entry(key), "its manifest cannot be read"))
                    continue
                if layer is not self.layout:
                    inputs = inputs.without(trusted_roots)
                try:
                    record = validity.stat_record(key, inputs, {}, root_paths, self.disk)
                    verdict = validity.holds_by_content(
                        validity.EMPTY, inputs, root_paths, self.disk, {}, trust_stamps=False
                    )
                    problem = (
                        host_problem(entry.binary)
                        or verdict.reason
                        or integrity_problem(entry, owners, allowed_write_bits=write_bits)
                    )
                except UNREADABLE:
                    problem = "its manifest cannot be read"
                if not problem:
                    return entry._replace(stat_record=record)
                rejected.append(Rejected(entry.folder, problem))
        return None

    def get(
        self, plan_key: str, root_paths: Mapping[str, str], rejected: list[Rejected], paranoid: bool = False
    ) -> Entry | None:
        """Returns the entry of this plan whose inputs are unchanged, after checking its library, or None.

        `rejected` gets every entry that does not fit, with the reason. `paranoid` trusts no stamp.
        """
        folder = self.layout.plan(plan_key)
        try:
            names = os.listdir(folder)
        except OSError:
            rejected.append(Rejected(self.layout.root, "nothing was built from this plan yet"))
            return None
        from .keys import root_paths_digest  # not on the path of a hit

        here = root_paths_digest(root_paths) + ".json"
        names.sort(key=lambda name: not name.endswith(here))
        candidates = []
        for name in names:
            record = validity.read_stat_record(os.path.join(folder, name))
            if record is None:
                continue
            trust_stamps = name.endswith(here) and not paranoid
            if trust_stamps and _holds_by_stamps(record, root_paths, self.disk):
                entry = self.use(record, (os.path.join(folder, name),))
                if entry:
                    return entry
            candidates.append((record, trust_stamps))
        digests: dict[str, str | None] = {}
        seen: set[str] = set()
        for record, trust_stamps in candidates:
            if record["result"] not in seen:
                seen.add(record["result"])
                entry = self._compare(plan_key, record, trust_stamps, root_paths, digests, rejected)
                if entry:
                    return entry
        return None

    def _compare(
        self,
        plan_key: str,
        record: Mapping[str, Any],
        trust_stamps: bool,
        root_paths: Mapping[str, str],
        digests: dict[str, str | None],
        rejected: list[Rejected],
    ) -> Entry | None:
        """Returns the entry of a stat record if its inputs are unchanged by content, and renews the record."""
        entry = self.read_entry(self.layout, record["result"], "cache")
        if entry is None:
            rejected.append(Rejected(self.layout.entry(record["result"]), "its manifest cannot be read"))
            return None
        inputs = _inputs_of(entry)
        if inputs is None:
            rejected.append(Rejected(entry.folder, "its manifest cannot be read"))
            return None
        try:
            from .filesystem.packages import KEPT_ANSWERS, PackageFiles  # not on the path of a hit
            from .records.trusted_trees import reassigned

            packages = PackageFiles(self.disk, self.layout.path(*KEPT_ANSWERS))
            inputs = reassigned(inputs, root_paths, packages)
            binary = {**entry.binary, **_full_check_stamp(record)}
            renewed = validity.stat_record(entry.key, inputs, binary, root_paths, self.disk)
            verdict = validity.holds_by_content(record, inputs, root_paths, self.disk, digests, trust_stamps)
        except UNREADABLE:
            rejected.append(Rejected(entry.folder, "its stat record or its manifest cannot be read"))
            return None
        if not verdict.holds:
            rejected.append(Rejected(entry.folder, verdict.reason))
            return None
        if not self._is_intact(entry, rejected):
            return None
        self.write_stat_record(plan_key, renewed, root_paths)
        return entry._replace(stat_record=renewed)

    def use(self, record: Mapping[str, Any], files: Sequence[str]) -> Entry | None:
        """Returns the entry of a stat record that holds, and notes its use in `files`.

        None if the library is not as recorded. The record itself may be damaged, so the entry is not quarantined here:
        the caller goes on to read its manifest.
        """
        key = record["result"]
        entry = Entry(key, self.layout.entry(key), record["binary"], "cache", record)
        if integrity_problem(entry, self.owners) is not None:
            return None
        self._note_use(files)
        return entry

    def _note_use(self, files: Sequence[str]) -> None:
        """Sets the files' times to now, at most once an hour, since the least recently used entry is evicted first.

        Only files[0] is checked: the others are always touched together with it.
        """
        try:
            if self.disk.now_ns() - os.stat(files[0]).st_mtime_ns > USE_INTERVAL_NS:
                for path in files:
                    os.utime(path)
        except OSError:
            return  # a read-only store, or a record that has just been replaced

    def read_entry(self, layout: Layout, key: str, origin: str) -> Entry | None:
        """Returns an entry by its manifest, with its library unchecked; None if there is no valid manifest.

        A manifest names its entry: one that lies in another entry's folder is not valid there.
        """
        try:
            manifest = read_json(os.path.join(layout.entry(key), MANIFEST))
            binary, is_own = manifest["binary"], manifest["result"] == key
            return Entry(key, layout.entry(key), binary, origin) if is_own and is_binary_record(binary) else None
        except UNREADABLE:
            return None

    def _is_intact(self, entry: Entry, rejected: list[Rejected]) -> bool:
        """Returns whether the entry's library is intact; otherwise quarantines the entry."""
        problem = integrity_problem(entry, self.owners)
        if problem is None:
            return True
        rejected.append(Rejected(entry.folder, problem))
        if os.path.lexists(entry.folder):
            from .staging import quarantine  # not on the path of a hit

            quarantine(self.layout, entry.key, problem)
        return False

    def stat_record_path(self, plan_key: str, entry_key: str, root_paths: Mapping[str, str]) -> str:
        """Returns the path of the stat record of a plan and an entry, for roots at these paths."""
        from .keys import root_paths_digest

        return os.path.join(self.layout.plan(plan_key), f"{entry_key}-{root_paths_digest(root_paths)}.json")

    def write_stat_record(self, plan_key: str, record: Mapping[str, Any], root_paths: Mapping[str, str]) -> None:
        """Writes a stat record and removes the plan's oldest. If that fails, the next look-up hashes more files."""
        from .keys import root_paths_digest

        folder, here = self.layout.plan(plan_key), root_paths_digest(root_paths) + ".json"
        try:
            make_folder(folder)
            write_file(self.stat_record_path(plan_key, record["result"], root_paths), json.dumps(record).encode())
            records = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(here)]
            if len(records) > KEPT_STAT_RECORDS:
                for path in sorted(records, key=lambda path: os.stat(path).st_mtime_ns)[:-KEPT_STAT_RECORDS]:
                    os.unlink(path)
        except OSError as error:
            log.debug("the stat record of %s was not written: %s", plan_key, error)


def _holds_by_stamps(record: Mapping[str, Any], root_paths: Mapping[str, str], disk: Disk) -> bool:
    try:
        return validity.holds_by_stamps(record, root_paths, disk)
    except UNREADABLE:
        return False


def _full_check_stamp(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the stamp of the library's last full check, which only stat records hold; empty if there is none."""
    return {"stamp": record["binary"]["stamp"]} if "stamp" in record["binary"] else {}


def _inputs_of(entry: Entry) -> Inputs | None:
    from .records.inputs import Inputs  # not on the path of a hit

    try:
        return Inputs.from_json(entry.manifest()["inputs"])
    except UNREADABLE:
        return None
