"""JITs with a folder and no other interface: the folder is filled with stored files, and new files in it are stored.

The folder is a private one of this process, so no lock of the JIT's is shared, and none is left by a process that was
killed. What a process makes is kept at the end of its scope: others do not wait for it.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator

from opforge.cache import trees
from opforge.foundation.files import make_folder, write_file

from . import notices, private_folder
from .adapter import Adapter
from .entries import Entries


class FolderAdapter(Adapter):
    """The base of adapters that point a JIT to a folder. An entry is a file in a folder of it, by its path.

    So a file that a JIT adds to a folder which was found is kept too: the code of another GPU, say.
    """

    format = 2

    def __init__(self) -> None:
        """Begins without a scope."""
        super().__init__()
        self._folders = dict[int, tuple[str, Callable[[], object]]]()

    @abstractmethod
    def point(self, folder: str) -> Callable[[], object]:
        """Makes the JIT use a folder from now on; returns what ends that."""

    def install(self) -> Callable[[], object]:
        """Changes nothing: each scope has a folder."""
        return lambda: None

    def begin(self, entries: Entries) -> None:
        """Fills a folder, and points the JIT to it. Raises OSError, and what `point` raises."""
        folder = private_folder.new(entries.topic.key)
        for key in entries.all_keys():
            if problem := trees.path_problem(key):  # as a signer could write it
                entries.set_aside(key, f"its entry {problem}")
                continue
            for path, content in (entries.get(key) or {}).items():
                target = os.path.join(folder, os.path.dirname(key), path)
                make_folder(os.path.dirname(target))
                write_file(target, content, 0o700)
        self._folders[id(entries)] = folder, self.point(folder)
        super().begin(entries)

    def end(self, entries: Entries) -> None:
        """Keeps what is new in the folder."""
        super().end(entries)
        if id(entries) not in self._folders:
            return  # it has not begun
        folder, restore = self._folders.pop(id(entries))
        restore()
        known = {*entries.all_keys()}
        for key in sorted({*self._made(folder)} - known):
            try:
                if problem := trees.path_problem(key):
                    raise ValueError(problem)
                with open(os.path.join(folder, key), "rb") as file:
                    entries.put(key, key, {os.path.basename(key): file.read()})
            except (OSError, ValueError) as error:
                notices.warn("%s: %s is not kept: %s", self.name, key, error)

    def _made(self, folder: str) -> Iterator[str]:
        for top, _folders, names in os.walk(folder):
            for name in names:
                if top != folder and re.fullmatch(self.carries, name):
                    yield os.path.relpath(os.path.join(top, name), folder)
