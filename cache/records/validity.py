"""Whether an entry is still valid: its inputs are compared by their stamps, or by their contents.

A stat record holds the stamps under which the inputs were last known to be unchanged. A hit reads one.

    v1/plans/PLAN/ENTRY-ROOTS.json    ROOTS is the digest of the root paths

    format, result   the version of this format; the entry key
    binary           the entry's binary record
    at               when the stamps were taken, in the disk's nanoseconds
    open             (root, path, stamp...) of each file that is checked one by one
    folders          the same, of the folders whose stamps change when a header may be shadowed
    seals            (tree, root, path, stamp...) of the stamp file of each trusted tree
    variables        (name, value) of each environment variable whose value is a part of the library

While every stamp is as recorded, no input is hashed. A file that was modified less than two seconds before its stamp
was taken is racy: a second change within one tick of a coarse clock would not change the stamp. A racy file is hashed
until its stamp is taken anew. (git's index has the same rule, and calls such a file racily clean.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.cache.filesystem.files import UNREADABLE, read_json

from .entry import is_binary_record

if TYPE_CHECKING:
    from .inputs import Dependency, Inputs, RootedPath

FORMAT = 1
RACY_NS = 2_000_000_000
"""How long before its stamp a file must have been modified for the stamp to be trusted."""
EMPTY: Mapping[str, Any] = {"at": 0, "open": [], "folders": [], "seals": []}
"""A stat record without stamps: every file is hashed."""
Stamps = Mapping[tuple[str, str], Stamp]
"""Stamps by (root, path)."""
_NO_STAMPS: Stamps = {}


class Verdict(NamedTuple):
    """Whether inputs are unchanged; `reason` names the first that is not."""

    holds: bool
    reason: str = ""


def stat_record(
    entry_key: str,
    inputs: Inputs,
    binary: Mapping[str, Any],
    root_paths: Mapping[str, str],
    disk: Disk,
    stamps: Stamps = _NO_STAMPS,
) -> dict[str, Any]:
    """Returns a stat record for inputs whose contents are checked by the caller.

    `stamps` were taken before the files were hashed; the others are taken now. So check the contents after this call,
    or pass stamps from before: a file that changes between its digest and its stamp would count as unchanged for ever.
    """

    def stamp(file: RootedPath | Dependency) -> Stamp:
        path = file.resolve(root_paths)
        return stamps.get((file.root, file.path)) or (path and disk.stamp(path)) or Stamp(-1, -1, -1, -1)

    return {
        "format": FORMAT,
        "result": entry_key,
        "binary": dict(binary),
        "at": disk.now_ns(),
        "open": [[file.root, file.path, *stamp(file)] for file in inputs.files if not file.tree],
        "folders": [[*folder, *stamp(folder)] for folder in inputs.folders],
        "seals": [[tree, *stamp_file, *stamp(stamp_file)] for tree, stamp_file in inputs.trusted_trees],
        "variables": inputs.variables(),
    }


def read_stat_record(path: str) -> dict[str, Any] | None:
    """Returns the stat record in a file, or None if it cannot be read or is not valid."""
    try:
        record = read_json(path)
        return record if is_stat_record(record) else None
    except UNREADABLE:
        return None


def is_stat_record(record: Any) -> bool:
    """Returns whether this is a stat record of this format. Raises one of UNREADABLE if it is not even an object."""
    complete = record["format"] == FORMAT and is_binary_record(record["binary"])
    return complete and record["result"] == os.path.basename(record["result"]) not in ("", ".", "..")


def holds_by_stamps(record: Mapping[str, Any], root_paths: Mapping[str, str], disk: Disk) -> bool:
    """Returns whether every stamp is as recorded and none is racy. Hashes nothing: this is the path of a hit."""
    newest = record["at"] - RACY_NS
    if not variables_hold(record):
        return False
    for root, path, *recorded in record["open"]:
        base = root_paths.get(root)
        if base is None:
            return False
        stamp = disk.stamp(base + "/" + path)
        if stamp is None or list(stamp) != recorded or stamp[1] > newest or stamp[2] > newest:
            return False
    if not _folders_hold(record, root_paths, disk):
        return False
    for _tree, root, path, *recorded in record["seals"]:
        base = root_paths.get(root)
        stamp = None if base is None else disk.stamp(base + "/" + path)
        if stamp is None or list(stamp) != recorded:
            return False
    return True


def variables_hold(record: Mapping[str, Any]) -> bool:
    """Returns whether the environment variables that are a part of the library have the same values."""
    return all(os.environ.get(name, "") == value for name, value in record.get("variables", ()))


def _folders_hold(record: Mapping[str, Any], root_paths: Mapping[str, str], disk: Disk) -> bool:
    newest = record["at"] - RACY_NS
    for root, path, *recorded in record["folders"]:
        base = root_paths.get(root)
        stamp = None if base is None else disk.stamp(base + "/" + path)
        if stamp is None or list(stamp) != recorded or stamp.mtime_ns > newest:
            return False
    return True


def holds_by_content(
    record: Mapping[str, Any],
    inputs: Inputs,
    root_paths: Mapping[str, str],
    disk: Disk,
    digests: dict[str, str | None],
    trust_stamps: bool = True,
) -> Verdict:
    """Returns whether the inputs are unchanged; hashes each file whose stamp does not prove it.

    `digests` maps a path to what has been hashed, so that the records of one look-up share the work.
    """
    newest = record["at"] - RACY_NS
    sealed = {
        tree
        for tree, root, path, *recorded in (record["seals"] if trust_stamps else ())
        if root in root_paths and list(disk.stamp(root_paths[root] + "/" + path) or ()) == recorded
    }
    stamps = {(root, path): recorded for root, path, *recorded in record["open"]}
    for dependency in inputs.files:
        location = (dependency.root, dependency.path)
        # What a package lists now may have been compared by its own stamp so far.
        if dependency.tree in sealed and location not in stamps:
            continue
        path = dependency.resolve(root_paths)
        if path is None:
            return Verdict(False, f"there is no root {dependency.root!r} here")
        if trust_stamps and not dependency.tree:
            stamp = disk.stamp(path)
            recorded = stamps.get(location)
            if stamp and list(stamp) == recorded and stamp.mtime_ns <= newest and stamp.ctime_ns <= newest:
                continue
        if path not in digests:
            digests[path] = disk.digest(path)
        if digests[path] is None:
            return Verdict(False, f"{path} is gone")
        if digests[path] != dependency.digest:
            return Verdict(False, f"{path} has changed")
    if not (trust_stamps and _folders_hold(record, root_paths, disk)):
        appeared = inputs.appeared(root_paths, disk)
        if appeared:
            return Verdict(False, f"{appeared} has appeared, and may shadow a header")
    changed = inputs.changed_answer(root_paths, disk)
    return Verdict(False, changed) if changed else Verdict(True)
