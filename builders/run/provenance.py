"""Where the files that a build read come from, and where a new file would change it: from paths to `Inputs`."""

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
"""The header that states Python's version: it is replaced together with an installation."""
LIBRARIES = (".so", ".a")
PACKAGED, UNPACKAGED = ("usr/", "lib/", "lib64/", "etc/", "bin/"), ("usr/local/",)
"""The folders whose files the package database lists, and those below them whose files it does not list."""


class Read(NamedTuple):
    """A file that the compiler read."""

    path: str
    location: RootedPath
    tree: str
    """The trusted tree that it belongs to; empty if none."""


class Provenance:
    """Assigns paths to the roots and trusted trees of one plan.

    Args:
        roots: The paths of the plan's roots, by name.
        disk: The disk.
        trusted_roots: The roots of a toolchain that are trusted trees, each with its stamp file.
    """

    def __init__(self, roots: Mapping[str, str], disk: Disk, trusted_roots: Mapping[str, str] | None = None) -> None:
        self.roots, self._disk = roots, disk
        bases = [(name, path.rstrip("/") + "/") for name, path in roots.items() if name != "system"]
        self._bases = sorted(bases, key=lambda base: -len(base[1]))
        self._stamp_files = self._find_stamp_files(trusted_roots or {})

    def _find_stamp_files(self, trusted_roots: Mapping[str, str]) -> dict[str, RootedPath]:
        """Returns the stamp file of each trusted tree: while it is unchanged, so are the files of the tree."""
        files = {root: RootedPath(root, path) for root, path in trusted_roots.items() if root in self.roots}
        if "torch" in self.roots:
            import glob

            packages = os.path.dirname(self.roots["torch"])
            records = sorted(glob.glob(os.path.join(glob.escape(packages), "torch-*.dist-info", "RECORD")))
            if len(records) == 1:
                files["torch"] = RootedPath("torch", os.path.join("..", os.path.relpath(records[0], packages)))
        if "python" in self.roots and self._disk.exists(os.path.join(self.roots["python"], PYTHON_STAMP)):
            files["python"] = RootedPath("python", PYTHON_STAMP)
        for database in PACKAGE_DATABASES:
            if self._disk.exists("/" + database):
                files["system"] = RootedPath("system", database)
                break
        return files

    def locate(self, path: str) -> Read:
        """Returns a file with the nearest root above it and the trusted tree that it belongs to."""
        path = _plain(path)
        for name, base in self._bases:
            if path.startswith(base):
                return Read(path, RootedPath(name, path[len(base) :]), name if name in self._stamp_files else "")
        inside = path.lstrip("/")
        trusted = "system" in self._stamp_files and inside.startswith(PACKAGED) and not inside.startswith(UNPACKAGED)
        return Read(path, RootedPath("system", inside), "system" if trusted else "")

    def stamps(self, reads: Iterable[Read]) -> dict[tuple[str, str], Stamp]:
        """Returns the present stamps of these files. A file that is gone has none."""
        stamps = ((read, self._disk.stamp(read.path)) for read in reads)
        return {read.location: stamp for read, stamp in stamps if stamp}

    def collect(self, reads: Iterable[Read], search: Iterable[str]) -> Inputs:
        """Hashes the files, and works out where a new file could change the outcome.

        `search` are the include folders in order. Raises OSError if a file is gone.
        """
        reads = tuple(reads)
        files, queried = [], set[str]()
        for read in reads:
            with open(read.path, "rb") as file:
                content = file.read()
            files.append(Dependency(*read.location, hashlib.sha256(content).hexdigest(), read.tree))
            if b"__has_" in content:
                queried |= {os.fsdecode(name) for name in HAS_INCLUDE.findall(content)}
        folders = list(dict.fromkeys(os.path.normpath(folder) for folder in search))
        quoting = sorted({os.path.dirname(read.path) for read in reads if not read.tree})
        names = queried | _names_below([*folders, *quoting], [read.path for read in reads])
        # The linker takes either for -lfoo, from the first folder that has one: both names are watched.
        stems = [os.path.splitext(name) for name in names]
        names |= {stem + suffix for stem, end in stems if end in LIBRARIES for suffix in LIBRARIES}
        located = (self.locate(folder + "/-") for folder in dict.fromkeys([*quoting, *folders]))
        return self._absences(files, sorted(names), [os.path.dirname(read.path) for read in located if not read.tree])

    def _absences(self, files: list[Dependency], names: list[str], searched: list[str]) -> Inputs:
        """Returns the inputs: the files, and which of the names are present in the searched folders now."""
        present, watched = set[RootedPath](), set[str]()
        for folder in searched:
            watched.add(self._nearest(folder))
            listing = self._disk.names(folder)
            for name in names:
                if may_be_in(listing, name):
                    path = os.path.normpath(os.path.join(folder, name))
                    watched.add(self._nearest(os.path.dirname(path)))
                    if self._disk.exists(path):
                        present.add(self._folder(folder).join(name))
        trees = {file.tree for file in files if file.tree}
        return Inputs(
            files=tuple(sorted(files)),
            names=tuple(names),
            searched=tuple(self._folder(folder) for folder in searched),
            present=tuple(sorted(present)),
            folders=tuple(sorted(self._folder(folder) for folder in watched)),
            trusted_trees=tuple(sorted((tree, file) for tree, file in self._stamp_files.items() if tree in trees)),
        )

    def _folder(self, path: str) -> RootedPath:
        location = self.locate(path + "/-").location
        return RootedPath(location.root, os.path.dirname(location.path))

    def _nearest(self, folder: str) -> str:
        """Returns the folder, or the nearest one above it that exists: its stamp changes if a name appears below."""
        while folder != "/" and not self._disk.exists(folder):
            folder = os.path.dirname(folder)
        return folder


def _plain(path: str) -> str:
    """Returns the path without `.` and `..`.

    If `..` follows a linked folder, text alone would lead elsewhere: then links are resolved.
    """
    plain = os.path.normpath(path)
    if "/../" in path and os.path.realpath(path) != os.path.realpath(plain):
        return os.path.realpath(path)
    return plain


def _names_below(folders: Iterable[str], paths: Iterable[str]) -> set[str]:
    """Returns every spelling by which an #include may have named one of the paths, with these folders searched."""
    bases = [folder.rstrip("/") + "/" for folder in folders]
    return {path[len(base) :] for path in paths for base in bases if path.startswith(base)}
