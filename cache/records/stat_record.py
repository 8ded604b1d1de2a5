"""Tickets: what a hit reads. One file holds the stamps under which an entry's inputs were last known to be the same.

A ticket belongs to a plan, a result and a *place* (where the roots lie). While every stamp holds, no input is hashed.
A file that was modified within the last two seconds before its stamp was taken is young: a second change within one
tick of a coarse clock would leave the stamp as it is, so a young file is hashed until it has come of age.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache.filesystem.disk import Disk, Stamp

from .inputs import Dependency, Inputs, RootedPath

FORMAT = 1
YOUNG_NS = 2_000_000_000
_NONE: Mapping[tuple[str, str], Stamp] = {}


BLANK: Mapping[str, Any] = {"at": 0, "open": [], "folders": [], "seals": []}
"""A ticket that vouches for nothing: every file is hashed."""


class Verdict(NamedTuple):
    """Whether a ticket's inputs are as they were; `reason` names the first that is not."""

    holds: bool
    reason: str = ""


Stamps = Mapping[tuple[str, str], Stamp]


def make(
    result: str, inputs: Inputs, binary: Mapping[str, Any], roots: Mapping[str, str], disk: Disk, known: Stamps = _NONE
) -> dict[str, Any]:
    """A ticket. `known` holds stamps that were taken before the files were hashed; the others are taken now.

    Whoever vouches for the contents must do so after this call, or pass the stamps from before: a file that changes
    between its digest and its stamp would be taken for unchanged for ever.
    """

    def stamp(where: RootedPath | Dependency) -> Stamp:
        path = where.resolve(roots)
        return known.get((where.root, where.path)) or (path and disk.stamp(path)) or Stamp(-1, -1, -1, -1)

    return {
        "format": FORMAT,
        "result": result,
        "binary": dict(binary),
        "at": disk.now_ns(),
        "open": [[d.root, d.path, *stamp(d)] for d in inputs.files if not d.seal],
        "folders": [[*where, *stamp(where)] for where in inputs.folders],
        "seals": [[name, *where, *stamp(where)] for name, where in inputs.seals],
    }


def holds_by_stamps(ticket: Mapping[str, Any], roots: Mapping[str, str], disk: Disk) -> bool:
    """Whether every stamp is as recorded and none is young: the hit path. Hashes nothing."""
    oldest_young = ticket["at"] - YOUNG_NS
    for root, path, *recorded in ticket["open"]:
        base = roots.get(root)
        if base is None:
            return False
        found = disk.stamp(base + "/" + path)
        if found is None or list(found) != recorded or found[1] > oldest_young or found[2] > oldest_young:
            return False
    if not _folders_hold(ticket, roots, disk):
        return False
    for _name, root, path, *recorded in ticket["seals"]:
        base = roots.get(root)
        found = None if base is None else disk.stamp(base + "/" + path)
        if found is None or list(found) != recorded:
            return False
    return True


def _folders_hold(ticket: Mapping[str, Any], roots: Mapping[str, str], disk: Disk) -> bool:
    oldest_young = ticket["at"] - YOUNG_NS
    for root, path, *recorded in ticket["folders"]:
        base = roots.get(root)
        found = None if base is None else disk.stamp(base + "/" + path)
        if found is None or list(found) != recorded or found.mtime_ns > oldest_young:
            return False
    return True


def holds_by_content(
    ticket: Mapping[str, Any],
    inputs: Inputs,
    roots: Mapping[str, str],
    disk: Disk,
    digests: dict[str, str | None],
    trust_stamps: bool = True,
) -> Verdict:
    """Whether the inputs are the same, hashing each file whose stamp does not vouch for it.

    `digests` remembers what this look-up has hashed, so that several tickets share the work.
    """
    young = ticket["at"] - YOUNG_NS
    sealed = trust_stamps and all(
        list((root in roots and disk.stamp(roots[root] + "/" + path)) or ()) == recorded
        for _name, root, path, *recorded in ticket["seals"]
    )
    stamps = {(root, path): recorded for root, path, *recorded in ticket["open"]}
    for dependency in inputs.files:
        if dependency.seal and sealed:
            continue
        path = dependency.resolve(roots)
        if path is None:
            return Verdict(False, f"there is no root {dependency.root!r} here")
        if trust_stamps and not dependency.seal:
            found = disk.stamp(path)
            recorded = stamps.get((dependency.root, dependency.path))
            if found and list(found) == recorded and found.mtime_ns <= young and found.ctime_ns <= young:
                continue
        if path not in digests:
            digests[path] = disk.digest(path)
        if digests[path] is None:
            return Verdict(False, f"{path} is gone")
        if digests[path] != dependency.digest:
            return Verdict(False, f"{path} has changed")
    if not (trust_stamps and _folders_hold(ticket, roots, disk)):
        appeared = inputs.appeared(roots, disk)
        if appeared:
            return Verdict(False, f"{appeared} has appeared, and may shadow a header")
    return Verdict(True)
