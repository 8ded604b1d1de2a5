"""What a build read, and what it looked for and did not find: the facts that decide whether its result still holds."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from opforge.cache.filesystem.disk import Disk


class RootedPath(NamedTuple):
    """A path below a named root, so that nothing depends on where the root lies."""

    root: str
    path: str

    def resolve(self, roots: Mapping[str, str]) -> str | None:
        """The absolute path, or None where this machine has no such root."""
        base = roots.get(self.root)
        return None if base is None else os.path.join(base, self.path)

    def join(self, name: str) -> RootedPath:
        """A name below this place."""
        return RootedPath(self.root, os.path.normpath(os.path.join(self.path, name)))


class Dependency(NamedTuple):
    """A file that the compiler read. `seal` names the tree whose stamp vouches for it; "" if none does."""

    root: str
    path: str
    digest: str
    seal: str = ""

    def resolve(self, roots: Mapping[str, str]) -> str | None:
        """The absolute path, or None where this machine has no such root."""
        base = roots.get(self.root)
        return None if base is None else os.path.join(base, self.path)


class Inputs(NamedTuple):
    """Everything outside its plan that a build's result depends on."""

    files: tuple[Dependency, ...]
    names: tuple[str, ...] = ()
    """Every name below a search folder under which a header was, or could have been, looked for."""
    searched: tuple[RootedPath, ...] = ()
    """The open folders in which those names were looked for; a name that appears there may shadow a header."""
    present: tuple[RootedPath, ...] = ()
    """The names that did exist in a searched folder at the time."""
    folders: tuple[RootedPath, ...] = ()
    """The folders whose stamps tell that no name has appeared in a searched folder."""
    seals: tuple[tuple[str, RootedPath], ...] = ()
    """(seal, stamp file): while the stamp file is as it was, so are the files under that seal."""

    def to_json(self) -> dict[str, object]:
        """A JSON-able form that `from_json` reads back."""
        return {
            "files": sorted(self.files),
            "names": sorted(self.names),
            "searched": sorted(self.searched),
            "present": sorted(self.present),
            "folders": sorted(self.folders),
            "seals": sorted((name, *where) for name, where in self.seals),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Inputs:
        """Read `to_json`'s form back. Raises KeyError, TypeError or ValueError where it is not one."""
        return cls(
            files=tuple(Dependency(*one) for one in data["files"]),
            names=tuple(data["names"]),
            searched=tuple(RootedPath(*one) for one in data["searched"]),
            present=tuple(RootedPath(*one) for one in data["present"]),
            folders=tuple(RootedPath(*one) for one in data["folders"]),
            seals=tuple((name, RootedPath(root, path)) for name, root, path in data["seals"]),
        )

    def without(self, roots: Collection[str]) -> Inputs:
        """These inputs less all that lies below some roots."""
        return self._replace(
            files=tuple(one._replace(seal="") for one in self.files if one.root not in roots),
            searched=tuple(one for one in self.searched if one.root not in roots),
            folders=tuple(one for one in self.folders if one.root not in roots),
            seals=(),
        )

    def appeared(self, roots: Mapping[str, str], disk: Disk) -> str | None:
        """The path of a name that was absent from a searched folder and is there now, or None."""
        present = set(self.present)
        for where in self.searched:
            base = where.resolve(roots)
            if base is None:
                continue
            listed = disk.names(base)  # one listing answers for nearly all of the names
            for name in self.names:
                path = os.path.join(base, name)
                if may_be_in(listed, name) and disk.exists(path) and where.join(name) not in present:
                    return path
        return None


def may_be_in(listed: frozenset[str], name: str) -> bool:
    """Whether a folder with these names in it can hold `name`; one that leads out of the folder always may."""
    first = name.partition("/")[0]
    return first in listed or first in ("", ".", "..")
