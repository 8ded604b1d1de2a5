"""What one user's processes on one machine remember of earlier look-ups.

    CACHE/opforge/machine/ID/lookups/KEY.json     CACHE is $XDG_CACHE_HOME, by default ~/.cache; also the releases of
                                                  kernel packages: see packages/registry/fetched.py
    CACHE/opforge/machine/ID/counts*              how often something was stored: see maintenance/counts.py

It is beside the stores, not in one: a store that was copied, baked into an image or mounted read-only has the same
contents everywhere, but each machine has stamps of its own. If that folder cannot be written, $XDG_RUNTIME_DIR is used.
Everything in it may be removed at any time; the next look-up is slower, nothing else.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import stat
import time
from collections.abc import Sequence

from opforge import settings

from .filesystem.files import can_write, make_folder, now_in, open_to_append, read_file, read_json, write_file
from .layout import MACHINE

LOOKUPS = "lookups"
MAX_LOOKUPS = 4096
"""How many look-ups are remembered. Above that the older half is removed."""
MAX_UNUSED_SECONDS = 90 * 24 * 3600.0
"""How long the memory of a machine that adds nothing to it is kept: each container may be a machine of its own."""
COUNTS = "counts"
"""The file to which each process appends what it has counted, when it ends."""
MAX_COUNTS_BYTES = 256 << 10
"""The length of that file above which its lines are added up: see maintenance/counts.py. At 16 times that nothing more
is counted."""
_machine_id = ""
_counts: dict[str, dict[str, float]] = {}
"""What this process has counted, by store, and not written yet."""
os.register_at_fork(after_in_child=_counts.clear)  # the parent writes them


def reset() -> None:
    """Forgets this machine's name, and what was counted."""
    global _machine_id
    _machine_id = ""
    _counts.clear()


def folders() -> list[str]:
    """Returns the folders that may hold this machine's memory, the preferred one first. They need not exist."""
    bases = [settings.user_folder("XDG_CACHE_HOME", ".cache"), settings.variable("XDG_RUNTIME_DIR")]
    return [f"{base}/opforge/{MACHINE}/{_id()}" for base in bases if base[:1] == "/"]


def _id() -> str:
    """Returns the machine's id: that of systemd or D-Bus, otherwise the host's name."""
    global _machine_id
    if not _machine_id:
        for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
            try:
                _machine_id = read_file(path, 4096).decode("ascii").strip()[:64]
            except (OSError, ValueError):
                continue
            if _machine_id.isalnum():
                return _machine_id
        _machine_id = os.uname().nodename.replace("/", "_") or "unknown"
    return _machine_id


def kept_folders() -> list[str]:
    """Returns the folders in which look-ups are remembered already, and that only this user can have written."""
    kept = []
    for folder in folders():
        lookups = f"{folder}/{LOOKUPS}"
        try:
            if is_private(lookups):
                kept.append(lookups)
        except OSError:
            continue
    return kept


def recall(name: str, kept: Sequence[str]) -> object:
    """Returns the value that was remembered under this name in the first of `kept_folders`; None if there is none.

    Raises ValueError for a damaged file.
    """
    for folder in kept:
        try:
            return read_json(f"{folder}/{name}.json")
        except OSError:
            continue
    return None


def is_private(folder: str) -> bool:
    """Returns whether a folder is this user's and nobody else can write it: what it holds was written by opforge."""
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def can_remember() -> bool:
    """Returns whether anything can be remembered here: a container may have no folder that can be written."""
    return any(can_write(f"{folder}/{LOOKUPS}") for folder in folders())


def remember(name: str, value: bytes) -> bool:
    """Writes a value, JSON text, under this name. Returns whether it could be written anywhere."""
    for folder in folders():
        lookups = f"{folder}/{LOOKUPS}"
        try:
            if os.path.islink(os.path.dirname(folder)) or os.path.islink(folder):
                continue  # what is written there would lie elsewhere
            make_folder(lookups)
            if not is_private(lookups):
                continue
            write_file(f"{lookups}/{name}.json", value)
        except OSError:
            continue
        _bound(lookups)
        return True
    return False


def _bound(folder: str) -> None:
    """Removes the older half of the memory if there are too many."""
    try:
        names = os.listdir(folder)
        if len(names) <= MAX_LOOKUPS:
            return
        paths = sorted((os.path.join(folder, name) for name in names), key=lambda path: os.lstat(path).st_mtime_ns)
        for path in paths[: len(paths) // 2]:
            os.unlink(path)
    except OSError:
        return  # another process does the same


def remove_unused() -> None:
    """Removes the folders of machines that have remembered nothing for a long time, this one's excepted."""
    for folder in folders():
        machines = os.path.dirname(folder)
        try:
            names = os.listdir(machines) if is_private(machines) else []
        except OSError:
            continue  # there is none yet
        now = now_in(machines) if names else 0.0
        for name in names:
            lookups = os.path.join(machines, name, LOOKUPS)
            try:
                is_unused = now - os.lstat(lookups).st_mtime > MAX_UNUSED_SECONDS
            except OSError:
                continue  # not a machine's
            if is_unused and name != os.path.basename(folder) and not os.path.islink(os.path.dirname(lookups)):
                shutil.rmtree(lookups, ignore_errors=True)
                try:
                    for file in os.listdir(os.path.dirname(lookups)):
                        if file.partition(".")[0] == COUNTS:
                            os.unlink(os.path.join(os.path.dirname(lookups), file))
                    os.rmdir(os.path.dirname(lookups))
                except OSError:
                    continue  # it holds something else


def count(store: str, **amounts: float) -> None:
    """Adds to what this process has counted of a store, in memory: on the path of a hit nothing is written.

    It is written when the process ends. What a process has counted that is killed, or ends by os._exit, is lost. Of two
    threads that count at the same instant, one may be lost.
    """
    counts = _counts.setdefault(store, {})
    for name, amount in amounts.items():
        counts[name] = counts.get(name, 0) + amount


def write_counts() -> None:
    """Appends what this process has counted, in one write: lines of several processes do not mix.

    Where nothing can be written, it is lost.
    """
    counts, now = dict(_counts), int(time.time())
    _counts.clear()
    lines = "".join(f"{json.dumps([now, store, amounts])}\n" for store, amounts in counts.items())
    for folder in folders() if lines else ():
        try:
            if os.path.islink(os.path.dirname(folder)):
                continue
            make_folder(folder)
            if not is_private(folder):
                continue
            handle = open_to_append(f"{folder}/{COUNTS}", os.O_CREAT)
        except OSError:
            continue
        try:
            if os.fstat(handle).st_size < 16 * MAX_COUNTS_BYTES:
                os.write(handle, lines.encode())
        except OSError:
            continue
        finally:
            os.close(handle)
        return


atexit.register(write_counts)
