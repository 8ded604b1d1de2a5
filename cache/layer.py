"""Makes a layer: a folder of entries that others can read, to be put into an image, a wheel or a shared folder.

A layer holds entries and the descriptions under which they are found; no tickets, objects or locks, which are one
machine's. Everybody may read it, and nobody but its owner may write it.
"""

from __future__ import annotations

import os
import shutil

from opforge.errors import CacheDirError

from .entry import Entry
from .layout import TAG, Layout


def add(folder: str, entry: Entry, description: str) -> Entry:
    """Copy an entry into the layer `folder`, which is made where it is missing; returns it as it lies there.

    An entry that the layer has already is left alone. Raises CacheDirError where the folder cannot be written.
    """
    layer = Layout(os.path.abspath(folder))
    try:
        for place in (layer.path("entries"), layer.description(description)):
            os.makedirs(place, exist_ok=True)
        tag = os.path.join(layer.root, "CACHEDIR.TAG")
        if not os.path.exists(tag):
            with open(tag, "w", encoding="ascii") as file:
                file.write(TAG)
        if not os.path.isdir(layer.entry(entry.result)):
            _copy(entry.folder, layer.entry(entry.result))
        with open(os.path.join(layer.description(description), entry.result), "wb"):
            pass
        for place, folders, files in os.walk(layer.root):
            _open_to_all(place, folders, files)
    except OSError as error:
        raise CacheDirError(layer.root, f"it cannot be written ({error.strerror})", "Choose another folder") from error
    return entry._replace(folder=layer.entry(entry.result))


def _copy(source: str, target: str) -> None:
    draft = f"{target}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        shutil.copytree(source, draft)
        os.rename(draft, target)
    except OSError:
        if not os.path.isdir(target):  # otherwise another process was first
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _open_to_all(place: str, folders: list[str], files: list[str]) -> None:
    for name in folders:
        os.chmod(os.path.join(place, name), 0o755)  # noqa: S103  # a layer is for others to read
    for name in files:
        os.chmod(os.path.join(place, name), 0o555 if name.endswith(".so") else 0o644)
    os.chmod(place, 0o755)  # noqa: S103
