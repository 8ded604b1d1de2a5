"""Whether an entry is still valid: its inputs are compared by their contents, and remembered by their stamps.

A racy stamp (see `opforge.cache.filesystem.disk`) is not remembered, so the file is hashed at the next look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from opforge.cache.filesystem.disk import ABSENT, Disk, PathStamp

if TYPE_CHECKING:
    from .inputs import Dependency, Inputs, RootedPath

PACKAGES = ("/site-packages/", "/dist-packages/")
"""The folders that Python's packages are installed in."""
_NO_STAMPS: Mapping[tuple[str, str], tuple[int, ...]] = {}


class Stamped(NamedTuple):
    """The stamps of an entry's inputs, as they were before the contents were compared."""

    files: tuple[PathStamp, ...]
    """Those that are checked one by one: files in no trusted tree."""
    others: tuple[PathStamp, ...]
    """The folders in which a header could appear, and the stamp file of each trusted tree."""
    variables: tuple[tuple[str, str], ...] = ()
    """The environment variables whose values are a part of the library, with these values."""

    @property
    def watched(self) -> tuple[PathStamp, ...]:
        """What a process that has loaded the entry compares again: all but what belongs to installed packages."""
        return tuple(
            (path, stamp)
            for path, stamp in (*self.files, *self.others)
            if not any(folder in path for folder in PACKAGES)
        )

    @property
    def is_complete(self) -> bool:
        """Whether all of them exist: a tree without its stamp file is not trusted."""
        return all(stamp != ABSENT for _path, stamp in (*self.files, *self.others))


class Observation:
    """The stamps and digests of files as one look-up sees them; each file is stamped before it is hashed, and once.

    Otherwise a file that changes between its digest and its stamp would count as unchanged for ever.
    """

    def __init__(
        self,
        root_paths: Mapping[str, str],
        disk: Disk,
        stamps: Mapping[tuple[str, str], tuple[int, ...]] = _NO_STAMPS,
    ) -> None:
        self._root_paths, self._disk = root_paths, disk
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._digests: dict[str, str | None] = {}
        for (root, path), stamp in stamps.items():
            if root in root_paths:
                self._stamps[f"{root_paths[root]}/{path}"] = tuple(stamp)

    def stamps(self, inputs: Inputs) -> Stamped:
        """Returns the stamps of the inputs. A path below a root that this machine does not have is left out."""

        def stamped(where: Iterable[RootedPath | Dependency]) -> tuple[PathStamp, ...]:
            return tuple((path, self._stamp(path)) for file in where if (path := self._path(file)))

        files = stamped(file for file in inputs.files if not file.tree)
        others = stamped([*inputs.folders, *(file for _tree, file in inputs.trusted_trees)])
        return Stamped(files, others, tuple(inputs.variables()))

    def problem(self, inputs: Inputs) -> str | None:
        """Returns the first thing that differs from what an entry was built from, or None. Hashes every file."""
        for dependency in inputs.files:
            path = self._path(dependency)
            if path is None:
                return f"there is no root {dependency.root!r} here"
            digest = self._digest(path)
            if digest is None:
                return f"{path} no longer exists"
            if digest != dependency.digest:
                return f"{path} has changed"
        appeared = inputs.appeared(self._root_paths, self._disk)
        if appeared:
            return f"{appeared} has appeared, and may shadow a header"
        return inputs.changed_answer(self._root_paths, self._disk)

    def _path(self, file: RootedPath | Dependency) -> str | None:
        base = self._root_paths.get(file.root)
        return None if base is None else f"{base}/{file.path}"

    def _stamp(self, path: str) -> tuple[int, ...]:
        if path not in self._stamps:
            self._stamps[path] = tuple(self._disk.stamp(path) or ABSENT)
        return self._stamps[path]

    def _digest(self, path: str) -> str | None:
        if path not in self._digests:
            self._stamp(path)
            self._digests[path] = self._disk.digest(path)
        return self._digests[path]
