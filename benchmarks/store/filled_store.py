"""Stores of any size: one real entry, and copies of it under other keys."""

from __future__ import annotations

import errno
import os
import shutil


def fill(root: str, size: int) -> None:
    """Adds copies of a store's only entry until it has `size` entries, each with a stat record and a description.

    Libraries and manifests are hard links: 100,000 copies would fill the disk, and a link takes as long to read. The
    store's objects stay as they are.

    Args:
        root: The folder of the store's version.
        size: The number of entries.
    """
    (plan,) = os.listdir(os.path.join(root, "plans"))
    (entry,) = os.listdir(os.path.join(root, "entries"))
    (record,) = os.listdir(os.path.join(root, "plans", plan))
    with open(os.path.join(root, "plans", plan, record), "rb") as file:
        content = file.read()
    entry_folder = os.path.join(root, "entries", entry)
    links = [Link(os.path.join(entry_folder, name)) for name in os.listdir(entry_folder)]
    for number in range(size - 1):
        key = f"{number:032x}"
        folders = [os.path.join(root, area, key) for area in ("plans", "entries", "descriptions")]
        for folder in folders:
            os.mkdir(folder, 0o700)
        with open(os.path.join(folders[0], record.replace(entry, key)), "wb") as file:
            file.write(content)
        for link in links:
            link.create(folders[1])
        with open(os.path.join(folders[2], key), "wb"):
            pass


class Link:
    """A file that is linked many times. When the file system allows no more links to it, a copy of it is linked."""

    def __init__(self, path: str) -> None:
        self._path, self._linked = path, path

    def create(self, folder: str) -> None:
        """Links the file into another folder, under its own name."""
        target = os.path.join(folder, os.path.basename(self._path))
        try:
            os.link(self._linked, target)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            shutil.copy(self._path, target)
            self._linked = target
