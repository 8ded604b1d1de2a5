"""What one user's processes on one machine remember of earlier look-ups.

    CACHE/opforge/machine/ID/lookups/KEY.json     CACHE is $XDG_CACHE_HOME, by default ~/.cache

It is beside the stores, not in one: a store that was copied, baked into an image or mounted read-only has the same
contents everywhere, but each machine has stamps of its own. If that folder cannot be written, $XDG_RUNTIME_DIR is used.
Everything in it may be removed at any time; the next look-up is slower, nothing else.
"""

from __future__ import annotations

import os
import stat

from .filesystem.files import can_write, make_folder, read_json, write_file
from .layout import MACHINE

LOOKUPS = "lookups"
MAX_LOOKUPS = 4096
"""How many look-ups are remembered. Above that the older half is removed."""
_machine_id = ""


def reset() -> None:
    """Forgets this machine's name."""
    global _machine_id
    _machine_id = ""


def folders() -> list[str]:
    """Returns the folders that may hold this machine's memory, the preferred one first. They need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    bases = [base if base[:1] == "/" else os.path.expanduser("~/.cache"), os.environ.get("XDG_RUNTIME_DIR", "")]
    return [f"{base}/opforge/{MACHINE}/{_id()}" for base in bases if base[:1] == "/"]


def _id() -> str:
    """Returns the machine's id: that of systemd or D-Bus, otherwise the host's name."""
    global _machine_id
    if not _machine_id:
        for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
            try:
                with open(path, encoding="ascii") as file:
                    _machine_id = file.read(64).strip()
            except (OSError, ValueError):
                continue
            if _machine_id.isalnum():
                return _machine_id
        _machine_id = os.uname().nodename.replace("/", "_") or "unknown"
    return _machine_id


def recall(name: str) -> object:
    """Returns the value that was remembered under this name; None if there is none.

    Raises ValueError for a damaged file.
    """
    for folder in folders():
        try:
            value = read_json(f"{folder}/{LOOKUPS}/{name}.json")
        except OSError:
            continue
        return value if is_private(f"{folder}/{LOOKUPS}") else None
    return None


def is_private(folder: str) -> bool:
    """Returns whether a folder is this user's and nobody else can write it: what it holds was written by opforge."""
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def can_remember() -> bool:
    """Returns whether anything can be remembered here: an image or a container may have no folder that can be written."""
    return any(can_write(f"{folder}/{LOOKUPS}") for folder in folders())


def remember(name: str, value: bytes) -> bool:
    """Writes a value, JSON text, under this name. Returns whether it could be written anywhere."""
    for folder in folders():
        lookups = f"{folder}/{LOOKUPS}"
        try:
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
