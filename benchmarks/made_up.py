"""Stores that hold as many entries as a question asks for: one real one, and copies of it under made-up keys."""

from __future__ import annotations

import errno
import os
import shutil


def fill(root: str, size: int) -> None:
    """Bring the store whose one entry was just built to `size` entries, each with a ticket and a description.

    `root` is the store's folder of its version. Libraries and manifests are hard links: 100,000 copies would fill the
    disk, and who reads one has as much to read. What objects the store has stay as they are.
    """
    (plan,) = os.listdir(os.path.join(root, "plans"))
    (entry,) = os.listdir(os.path.join(root, "entries"))
    (ticket,) = os.listdir(os.path.join(root, "plans", plan))
    with open(os.path.join(root, "plans", plan, ticket), "rb") as file:
        content = file.read()
    real = os.path.join(root, "entries", entry)
    links = [Link(os.path.join(real, name)) for name in os.listdir(real)]
    for number in range(size - 1):
        key = f"{number:032x}"
        folders = [os.path.join(root, area, key) for area in ("plans", "entries", "descriptions")]
        for folder in folders:
            os.mkdir(folder, 0o700)
        with open(os.path.join(folders[0], ticket.replace(entry, key)), "wb") as file:
            file.write(content)
        for link in links:
            link.make(folders[1])
        with open(os.path.join(folders[2], key), "wb"):
            pass


class Link:
    """A file that is linked again and again; where it can bear no more links, a copy of it is linked from then on."""

    def __init__(self, path: str) -> None:
        self._path, self._linked = path, path

    def make(self, folder: str) -> None:
        """Put the file into another folder, under its own name."""
        target = os.path.join(folder, os.path.basename(self._path))
        try:
            os.link(self._linked, target)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            shutil.copy(self._path, target)
            self._linked = target
