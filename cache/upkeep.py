"""Keeps a store sound and bounded: checks every entry, evicts what is used least, sweeps what dead processes left.

Nothing here needs a lock. An entry leaves by one rename, so nobody ever sees half of one, and a process that has
loaded it keeps its library. Whatever another process removes first counts as removed.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from opforge.errors import CacheDirError

from . import staging, usage
from .entry import Entry, damage, is_record
from .keys import result_key
from .layout import Layout

YOUNG_SECONDS = 60.0
"""An entry that was published or used this recently stays: someone may be about to load it."""
DAY = 24 * 3600.0
KEPT_SECONDS = {"failures": DAY, "logs": 7 * DAY, "quarantine": 7 * DAY, "sources": 30 * DAY, "locks": 7 * DAY}
"""How long what is no entry is kept. `sources` are those of load_inline, which writes them again when it needs them."""
KINDS = {
    "descriptions": "description",
    "failures": "failure",
    "locks": "lock",
    "logs": "log",
    "plans": "ticket",
    "quarantine": "quarantined folder",
    "sources": "source",
    "staging": "abandoned build",
    "toolchains": "compiler record",
}


class Checked(NamedTuple):
    """One entry after a full check; `problem` is empty where it is sound."""

    result: str
    op: str
    path: str
    problem: str


class Condemned(NamedTuple):
    """Something that is to be removed, and why."""

    kind: str
    """entry, or one of KINDS."""
    path: str
    size: int
    reason: str
    op: str = ""


# -- checking ----------------------------------------------------------------------------------------------------------


def verify(layout: Layout, owners: Collection[int], on_each: Callable[[int, int], None] | None = None) -> list[Checked]:
    """Hash every library and compare every result key; set damaged entries aside. `on_each` hears how many are done."""
    checked = []
    folders = usage.subfolders(layout.path("entries"))
    for number, folder in enumerate(folders):
        manifest = usage.read_manifest(layout, folder.name)
        problem = usage.UNREADABLE
        entry = Entry(folder.name, folder.path, {}, "cache")
        if manifest is not None:
            entry = entry._replace(binary=manifest["binary"])
            problem = _problem(entry, manifest, owners)
        if os.path.lexists(folder.path):  # otherwise another process has removed it meanwhile
            if problem:
                staging.set_aside(layout, folder.name, problem)
            library = entry.library if is_record(entry.binary) else folder.path
            checked.append(Checked(folder.name, str(entry.binary.get("op", "")), library, problem))
        if on_each:
            on_each(number + 1, len(folders))
    return checked


def _problem(entry: Entry, manifest: dict[str, object], owners: Collection[int]) -> str:
    if not is_record(entry.binary):
        return "its manifest is incomplete"
    try:
        problem = damage(entry, owners, full=True)
        inputs = manifest["inputs"]["files"]  # type: ignore[index]
        key = result_key(str(manifest["plan"]), [(root, path, digest) for root, path, digest, _seal in inputs])
    except (KeyError, TypeError, ValueError, AttributeError):
        return "its manifest is incomplete"
    except OSError as error:
        return f"the library cannot be read ({error.strerror})"
    if not problem and key != entry.result:
        return "its manifest speaks of another entry"
    return problem or ""


# -- choosing what goes ------------------------------------------------------------------------------------------------


def surplus(layout: Layout, now: float, max_size: int | None = None, max_age: float | None = None) -> list[Condemned]:
    """What `gc` removes: entries beyond the limits, the least recently used first, and what nobody needs any more.

    `max_size` is in bytes and counts entries alone; `max_age` is in seconds since the last use. Changes nothing.
    """
    stored = sorted(usage.entries(layout), key=lambda one: one.used)
    total, gone = sum(one.size for one in stored), []
    for one in stored:
        idle = now - max(one.built, one.used)
        if idle < YOUNG_SECONDS:
            continue
        if max_age is not None and idle > max_age:
            reason = "not used for longer than the age limit"
        elif max_size is not None and total > max_size:
            reason = "the least recently used, and the store is larger than the limit"
        else:
            continue
        total -= one.size
        gone.append((one.result, Condemned("entry", layout.entry(one.result), one.size, reason, one.op)))
    dead = {result for result, _condemned in gone}
    kept = {one.name for one in usage.subfolders(layout.path("entries"))} - dead
    return [condemned for _result, condemned in gone] + _orphans(layout, kept) + _leftovers(layout, now)


def everything(layout: Layout, ops: Collection[str] | None = None) -> list[Condemned]:
    """What `clear` removes: all that can be built again, or the entries of `ops` alone. Live builds are left alone."""
    stored = [one for one in usage.entries(layout) if ops is None or one.op in ops]
    gone = [Condemned("entry", layout.entry(one.result), one.size, "cleared", one.op) for one in stored]
    dead = {one.result for one in stored}
    kept = {one.name for one in usage.subfolders(layout.path("entries"))} - dead
    found = gone + _orphans(layout, kept)
    if ops is None:
        for area in ("toolchains", *(name for name in KEPT_SECONDS if name != "locks")):
            found += [_condemned(area, one.path, "cleared") for one in usage.listed(layout.path(area))]
        found += [_condemned("staging", path, "cleared") for path in _abandoned(layout)]
    return found


def _orphans(layout: Layout, kept: Collection[str]) -> list[Condemned]:
    """Tickets and descriptions of entries that are gone, or that are about to go."""
    found = []
    for area, result_of in (("plans", usage.ticket_of), ("descriptions", str)):
        for folder in usage.subfolders(layout.path(area)):
            for file in usage.listed(folder.path):
                result = result_of(file.name)
                if result and not result.endswith(".tmp") and result not in kept:
                    found.append(_condemned(area, file.path, "its entry is gone"))
    return found


def _leftovers(layout: Layout, now: float) -> list[Condemned]:
    found = [_condemned("staging", path, "its builder is gone") for path in _abandoned(layout)]
    for area, seconds in KEPT_SECONDS.items():
        for one in usage.listed(layout.path(area)):
            stat = usage.stat_of(one.path)
            if stat and now - max(stat.st_mtime, stat.st_ctime) > seconds:
                found.append(_condemned(area, one.path, f"older than {seconds / DAY:g} d"))
    return found


def _abandoned(layout: Layout) -> list[str]:
    """The staging folders that `staging.sweep` would remove: of this host's dead processes, and any after a day."""
    host, found = socket.gethostname(), []
    for one in usage.listed(layout.path("staging")):
        owner, _, pid = one.name.rpartition(".")[0].rpartition(".")
        stat = usage.stat_of(one.path)
        if owner.endswith("." + host) and pid.isdecimal():
            dead = not os.path.exists(f"/proc/{pid}")
        else:
            dead = stat is not None and time.time() - stat.st_mtime >= staging.ABANDONED_SECONDS
        if dead:
            found.append(one.path)
    return found


def _condemned(area: str, path: str, reason: str) -> Condemned:
    size = 0
    for place in [path, *(os.path.join(top, name) for top, _folders, names in os.walk(path) for name in names)]:
        stat = usage.stat_of(place)
        size += stat.st_size if stat and not os.path.isdir(place) else 0
    return Condemned(KINDS[area], path, size, reason)


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(layout: Layout, condemned: Iterable[Condemned]) -> list[Condemned]:
    """Remove these, and return those that this call has removed. Raises CacheDirError where the store is read-only."""
    return [one for one in condemned if _remove(layout, one)]


def _remove(layout: Layout, one: Condemned) -> bool:
    try:
        return _take(layout, one)
    except FileNotFoundError:
        return False  # another process was first
    except OSError as error:
        advice = f"{one.path} could not be removed. Run this as the owner of the folder"
        raise CacheDirError(layout.root, f"it cannot be changed ({error.strerror})", advice) from error


def _take(layout: Layout, one: Condemned) -> bool:
    if one.kind == "lock":
        return _remove_lock(one.path)
    if os.path.isdir(one.path) and not os.path.islink(one.path):
        if one.kind == KINDS["staging"]:
            shutil.rmtree(one.path)
            return True
        # Out of sight by one rename first. Its new name says whose it is, so that a sweep finds it if this dies here.
        grave = staging.begin(layout, os.path.basename(one.path))
        try:
            os.rename(one.path, os.path.join(grave, "removed"))
        finally:
            shutil.rmtree(grave, ignore_errors=True)
        return True
    os.unlink(one.path)
    if one.kind == "ticket":
        try:
            os.rmdir(os.path.dirname(one.path))
        except OSError:
            return True  # other tickets are left
    return True


def _remove_lock(path: str) -> bool:
    """Remove a lock's file while holding it, so that nobody is inside; its next user sees that and makes another."""
    if path.endswith(".owner"):
        os.unlink(path)
        return True
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    except FileNotFoundError:
        raise
    except OSError:
        return False  # somebody holds it, or this file system has no such locks
    finally:
        os.close(handle)
