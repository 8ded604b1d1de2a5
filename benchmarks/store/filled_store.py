"""Stores of any size: one real entry, and copies of it under other keys."""

from __future__ import annotations

import errno
import json
import os
import shutil

from opforge.cache.records.entry import with_record_key

RECORD = "record.json"


def fill(root: str, size: int) -> None:
    """Adds copies of a store's only entry until it has `size` entries, each with its pointers.

    A copy has a record of its own, as a record names its entry. The other files are hard links: 100,000 copies would
    fill the disk, and a link takes as long to read. The store's objects stay as they are.

    Args:
        root: The folder of the store's version.
        size: The number of entries.
    """
    (entry,) = os.listdir(os.path.join(root, "entries"))
    entry_folder = os.path.join(root, "entries", entry)
    links = [Link(os.path.join(entry_folder, name)) for name in os.listdir(entry_folder) if name != RECORD]
    with open(os.path.join(entry_folder, RECORD), encoding="utf-8") as file:
        record = json.load(file)
    for number in range(size - 1):
        key = f"{number:032x}"
        name = key + entry[len(key) :]
        folders = {area: os.path.join(root, area, key) for area in ("plans", "descriptions")}
        folders["entries"] = os.path.join(root, "entries", name)
        for folder in folders.values():
            os.mkdir(folder, 0o700)
        for link in links:
            link.create(folders["entries"])
        with open(os.path.join(folders["entries"], RECORD), "w", encoding="utf-8") as file:
            json.dump(with_record_key({**record, "key": key, "plan": key, "description": key}), file)
        for area in ("plans", "descriptions"):
            with open(os.path.join(folders[area], name), "wb"):
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
