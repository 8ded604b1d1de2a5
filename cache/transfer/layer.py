"""Makes a layer: a folder of entries that others can read, to be put into an image, a wheel or a shared folder.

A layer holds entries and the descriptions under which they are found; no tickets, objects or locks, which are one
machine's. Everybody may read it, and nobody but its owner may write it.
"""

from __future__ import annotations

import os
import shutil
import stat
import time

from opforge.cache.layout import TAG, Layout
from opforge.cache.maintenance.listing import stat_of
from opforge.cache.records.entry import Entry
from opforge.errors import CacheDirError

TEMP_FOLDER_SECONDS = 3600.0
"""An entry that is being copied has its own name by then."""


def add(folder: str, entry: Entry, description: str) -> Entry:
    """Copy an entry into the layer `folder`, which is made where it is missing; returns it as it lies there.

    An entry that the layer has already is left alone. Raises CacheDirError where the folder cannot be written.
    """
    layer = Layout(os.path.abspath(folder))
    try:
        for place in (layer.path("entries"), layer.description(description)):
            _make_folder(place, layer.root)
        _make_file(os.path.join(layer.root, "CACHEDIR.TAG"), TAG)
        _sweep(layer.path("entries"))
        if not os.path.isdir(layer.entry(entry.key)):
            _copy(entry.folder, layer.entry(entry.key))
        _make_file(os.path.join(layer.description(description), entry.key), "")
    except OSError as error:
        raise CacheDirError(layer.root, f"it cannot be written ({error.strerror})", "Choose another folder") from error
    return entry._replace(folder=layer.entry(entry.key))


def _sweep(entries: str) -> None:
    """Remove the drafts of those who were killed while they copied."""
    for name in os.listdir(entries):
        path = os.path.join(entries, name)
        found = stat_of(path) if name.endswith(".tmp") else None
        if found and time.time() - found.st_mtime > TEMP_FOLDER_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _copy(source: str, target: str) -> None:
    draft = f"{target}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        os.mkdir(draft)
        for name in os.listdir(source):
            shutil.copyfile(os.path.join(source, name), os.path.join(draft, name))
            _set_mode(os.path.join(draft, name), 0o555 if name.endswith(".so") else 0o644)
        _set_mode(draft, 0o755)
        os.rename(draft, target)
    except OSError:
        if not os.path.isdir(target):  # otherwise another process was first
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _make_folder(path: str, root: str) -> None:
    """Make a folder of the layer; it and those above it, down from the layer's own, are for others to read."""
    os.makedirs(path, exist_ok=True)
    while len(path) >= len(root):
        _set_mode(path, 0o755)
        path = os.path.dirname(path)


def _make_file(path: str, text: str) -> None:
    if not os.path.exists(path):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    _set_mode(path, 0o644)


def _set_mode(path: str, mode: int) -> None:
    """Set a mode whatever the umask; what another owner has made right is left alone."""
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)
