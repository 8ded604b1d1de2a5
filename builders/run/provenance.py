"""Which files a build has read, whose they are, and where a new file would change it: from depfiles to `Inputs`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.cache.records.inputs import Dependency, Inputs, RootedPath, may_be_in

HAS_INCLUDE = re.compile(rb"__has_(?:include(?:_next)?|embed)\s*\(\s*[<\"]([^>\"\n]+)[>\"]")
PACKAGE_DATABASES = (
    "var/lib/dpkg/status",
    "var/lib/rpm/rpmdb.sqlite",
    "usr/lib/sysimage/rpm/rpmdb.sqlite",
    "lib/apk/db/installed",
    "var/lib/pacman/local",
)
PYTHON_STAMP = "patchlevel.h"
"""The header that states Python's version: an installation that is replaced replaces it too."""
LIBRARIES = (".so", ".a")
PACKAGED, UNPACKAGED = ("usr/", "lib/", "lib64/", "etc/", "bin/"), ("usr/local/",)
"""What the package database vouches for. A file anywhere else is watched by itself."""


class Read(NamedTuple):
    """A file that the compiler read, with its stamp from before it was hashed."""

    path: str
    where: RootedPath
    seal: str


class Provenance:
    """Sorts paths into roots and seals, for one plan's roots.

    `seals` names roots of a toolchain's own, each with the file below it whose stamp vouches for the others.
    """

    def __init__(self, roots: Mapping[str, str], disk: Disk, seals: Mapping[str, str] | None = None) -> None:
        self.roots, self._disk = roots, disk
        self._given = seals or {}
        named = [(name, path.rstrip("/") + "/") for name, path in roots.items() if name != "system"]
        self._named = sorted(named, key=lambda one: -len(one[1]))
        self._seals = self._find_seals()

    def _find_seals(self) -> dict[str, RootedPath]:
        seals = {root: RootedPath(root, path) for root, path in self._given.items() if root in self.roots}
        if "torch" in self.roots:
            import glob

            packages = os.path.dirname(self.roots["torch"])
            records = sorted(glob.glob(os.path.join(glob.escape(packages), "torch-*.dist-info", "RECORD")))
            if len(records) == 1:
                seals["torch"] = RootedPath("torch", os.path.join("..", os.path.relpath(records[0], packages)))
        if "python" in self.roots and self._disk.exists(os.path.join(self.roots["python"], PYTHON_STAMP)):
            seals["python"] = RootedPath("python", PYTHON_STAMP)
        for database in PACKAGE_DATABASES:
            if self._disk.exists("/" + database):
                seals["system"] = RootedPath("system", database)
                break
        return seals

    def place(self, path: str) -> Read:
        """Whose a file is: the nearest root above it, and the seal that vouches for it, if any."""
        path = _plain(path)
        for name, base in self._named:
            if path.startswith(base):
                return Read(path, RootedPath(name, path[len(base) :]), name if name in self._seals else "")
        inside = path.lstrip("/")
        sealed = "system" in self._seals and inside.startswith(PACKAGED) and not inside.startswith(UNPACKAGED)
        return Read(path, RootedPath("system", inside), "system" if sealed else "")

    def stamps(self, reads: Iterable[Read]) -> dict[tuple[str, str], Stamp]:
        """The stamps of these files now; a file that is gone has none."""
        found = ((read, self._disk.stamp(read.path)) for read in reads)
        return {read.where: stamp for read, stamp in found if stamp}

    def collect(self, reads: Iterable[Read], search: Iterable[str]) -> Inputs:
        """Hash the files, and work out where a new file could change the outcome.

        `search` are the include folders in order. Raises OSError where a file has gone.
        """
        reads = tuple(reads)
        files, queried = [], set[str]()
        for read in reads:
            with open(read.path, "rb") as file:
                content = file.read()
            files.append(Dependency(*read.where, hashlib.sha256(content).hexdigest(), read.seal))
            if b"__has_" in content:
                queried |= {os.fsdecode(name) for name in HAS_INCLUDE.findall(content)}
        folders = list(dict.fromkeys(os.path.normpath(folder) for folder in search))
        quoting = sorted({os.path.dirname(read.path) for read in reads if not read.seal})
        names = queried | _names_below([*folders, *quoting], [read.path for read in reads])
        # -lfoo finds either of the two, in the first folder that has one.
        names |= {stem + kind for stem, end in map(os.path.splitext, names) if end in LIBRARIES for kind in LIBRARIES}
        searched = [
            place for folder in dict.fromkeys([*quoting, *folders]) if not (place := self.place(folder + "/-")).seal
        ]
        return self._absences(files, sorted(names), [os.path.dirname(place.path) for place in searched])

    def _absences(self, files: list[Dependency], names: list[str], searched: list[str]) -> Inputs:
        present, watched = set[RootedPath](), set[str]()
        for folder in searched:
            watched.add(self._nearest(folder))
            listed = self._disk.names(folder)
            for name in names:
                if may_be_in(listed, name):
                    path = os.path.normpath(os.path.join(folder, name))
                    watched.add(self._nearest(os.path.dirname(path)))
                    if self._disk.exists(path):
                        present.add(self._folder(folder).join(name))
        used = {file.tree for file in files if file.tree}
        return Inputs(
            files=tuple(sorted(files)),
            names=tuple(names),
            searched=tuple(self._folder(folder) for folder in searched),
            present=tuple(sorted(present)),
            folders=tuple(sorted(self._folder(folder) for folder in watched)),
            trusted_trees=tuple(sorted((name, where) for name, where in self._seals.items() if name in used)),
        )

    def _folder(self, path: str) -> RootedPath:
        where = self.place(path + "/-").where
        return RootedPath(where.root, os.path.dirname(where.path))

    def _nearest(self, folder: str) -> str:
        """The folder itself, or the nearest one above it that exists: its stamp changes when a name appears below."""
        while folder != "/" and not self._disk.exists(folder):
            folder = os.path.dirname(folder)
        return folder


def _plain(path: str) -> str:
    """The path without `.` and `..`; by its links where it goes up from a linked folder, which text cannot follow."""
    plain = os.path.normpath(path)
    if "/../" in path and os.path.realpath(path) != os.path.realpath(plain):
        return os.path.realpath(path)
    return plain


def _names_below(folders: Iterable[str], paths: Iterable[str]) -> set[str]:
    """Each way in which a path may have been spelled in an #include, given the folders that were searched."""
    bases = [folder.rstrip("/") + "/" for folder in folders]
    return {path[len(base) :] for path in paths for base in bases if path.startswith(base)}
