"""JITs that have a folder and no other interface: it is filled with what is kept, and what is new in it is kept.

The folder is a private one of this process, so no lock of the JIT's is shared, and none is left by a process that was
killed. What a process makes is kept at the end of its scope: others do not wait for it.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator

from opforge.graphs import notices, private_folder
from opforge.machine_folder import make_folder, write_file

from .adapter import Adapter
from .entries import Entries


class FolderAdapter(Adapter):
    """The base of adapters that point a JIT to a folder. An entry is a folder in it, by its path."""

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
        """Fills a folder, and points the JIT to it."""
        folder = private_folder.new(entries.topic.key)
        for key in entries.all_keys():
            for path, content in (entries.get(key) or {}).items():
                target = os.path.join(folder, key, path)
                make_folder(os.path.dirname(target))
                write_file(target, content, 0o700)
        self._folders[id(entries)] = folder, self.point(folder)
        super().begin(entries)

    def end(self, entries: Entries) -> None:
        """Keeps what is new in the folder."""
        super().end(entries)
        folder, restore = self._folders.pop(id(entries))
        restore()
        known = {*entries.all_keys()}
        for key, paths in self._made(folder):
            if key not in known:
                try:
                    files = {}
                    for path in paths:
                        with open(os.path.join(folder, key, path), "rb") as file:
                            files[path] = file.read()
                    entries.put(key, key, files)
                except OSError as error:
                    notices.warn("%s: %s is not kept: %s", self.name, key, error)

    def _made(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        for top, _folders, names in os.walk(folder):
            carried = [name for name in sorted(names) if re.fullmatch(self.carries, name)]
            if carried and top != folder:
                yield os.path.relpath(top, folder), carried
