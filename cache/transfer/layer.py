"""Fills a layer: a folder of entries that other users can read, for an image, a wheel or a shared folder.

A layer holds entries and the descriptions under which they are found. It holds no stat records, objects or locks, which
are one machine's. Every user may read it, and only its owner may write it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time

from opforge.cache.filesystem.files import is_temp_name, make_folder, temp_path
from opforge.cache.layout import Layout
from opforge.cache.maintenance.listing import stat_of
from opforge.cache.records.entry import Entry
from opforge.errors import CacheDirError

TEMP_FOLDER_SECONDS = 3600.0
"""A temporary folder that is older was left by a process that was killed while it copied."""


def add(folder: str, entry: Entry, description: str) -> Entry:
    """Copies an entry into the layer `folder`, which is made if it is missing; returns the entry in the layer.

    An entry that the layer has already is left alone. Raises CacheDirError if the folder cannot be written.
    """
    layer = Layout(os.path.abspath(folder))
    try:
        for path in (layer.path("entries"), layer.description(description)):
            _make_folder(path, layer.root)
        _sweep(layer.path("entries"))
        if not os.path.isdir(layer.entry(entry.key)):
            _copy(entry, layer.entry(entry.key))
        _make_empty_file(os.path.join(layer.description(description), entry.key))
    except CacheDirError:
        raise
    except OSError as error:
        raise CacheDirError(layer.root, f"it cannot be written ({error.strerror})", "Choose another folder") from error
    return entry._replace(folder=layer.entry(entry.key))


def _sweep(entries: str) -> None:
    """Removes the temporary folders of processes that were killed while they copied."""
    for name in os.listdir(entries):
        path = os.path.join(entries, name)
        status = stat_of(path) if is_temp_name(name) else None
        if status and stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime > TEMP_FOLDER_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _copy(entry: Entry, target: str) -> None:
    """Copies an entry's folder by one rename.

    Until then nobody else may open it: with a descriptor from before the modes are set, a member of the group could
    change the library after it was checked.
    """
    temporary = temp_path(target)
    try:
        os.mkdir(temporary, 0o700)
        for name in os.listdir(entry.folder):
            is_library = name == entry.binary["file"]
            digest = _copy_file(os.path.join(entry.folder, name), os.path.join(temporary, name), is_library)
            if is_library and digest != entry.binary["sha256"]:
                raise CacheDirError(entry.folder, "its library has changed while it was copied", "Build the op again")
        _set_mode(temporary, 0o755)
        os.rename(temporary, target)
    except OSError:
        if not os.path.isdir(target):  # otherwise another process was first
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_file(source: str, target: str, is_library: bool) -> str:
    """Copies a file. Returns the SHA-256 of what the new file holds, read back through its own descriptor."""
    handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "r+b") as copy, open(source, "rb") as original:
        shutil.copyfileobj(original, copy)
        copy.flush()
        os.fchmod(handle, 0o555 if is_library else 0o644)
        copy.seek(0)
        digest = hashlib.sha256()
        while chunk := copy.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()


def _make_folder(path: str, root: str) -> None:
    """Makes a folder of the layer; makes it and its parents, from `root` down, readable for every user.

    The folders above `root` are not opforge's: if they are missing, they get the umask's modes.
    """
    os.makedirs(os.path.dirname(root), exist_ok=True)
    make_folder(path)  # with mode 0700: whatever the umask, nobody else can put a file there meanwhile
    while len(path) >= len(root):
        _set_mode(path, 0o755)
        path = os.path.dirname(path)


def _make_empty_file(path: str) -> None:
    # Mode 0600 first: with the umask 002 a member of the group could open it for writing before the mode is set.
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    _set_mode(path, 0o644)


def _set_mode(path: str, mode: int) -> None:
    """Sets a mode whatever the umask. A mode that is right already is not set: the file may be another user's."""
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)
