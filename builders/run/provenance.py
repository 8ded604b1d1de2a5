"""Where the files that a build read come from, and where a new file would change it: from paths to `Inputs`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.cache.records.inputs import (
    INCLUDE,
    VARIABLE,
    Answer,
    Dependency,
    Inputs,
    RootedPath,
    below,
    may_be_in,
    names_before,
    places,
)

from .questions import DATE, Questions

PACKAGE_DATABASES = (
    "var/lib/dpkg/status",
    "var/lib/rpm/rpmdb.sqlite",
    "usr/lib/sysimage/rpm/rpmdb.sqlite",
    "lib/apk/db/installed",
    "var/lib/pacman/local",
)
PYTHON_STAMP = "patchlevel.h"
"""The header that states Python's version: whoever replaces an installation replaces it too."""
LIBRARIES = (".so", ".a")
NO_QUESTIONS = Questions()
PACKAGED, UNPACKAGED = ("usr/", "lib/", "lib64/", "etc/", "bin/"), ("usr/local/",)
"""The folders whose files the package database lists, and those below them whose files it does not list."""


class Read(NamedTuple):
    """A file that the compiler read."""

    path: str
    location: RootedPath
    tree: str
    """The trusted tree that it belongs to; empty if none."""
    spelled: str = ""
    """The path as the compiler has it: `folder/../x.h` shows that `../x.h` was looked for in `folder`."""


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
        spelled, path = path, _plain(path)
        for name, base in self._bases:
            if path.startswith(base):
                tree = name if name in self._stamp_files else ""
                return Read(path, RootedPath(name, path[len(base) :]), tree, spelled)
        inside = path.lstrip("/")
        trusted = "system" in self._stamp_files and inside.startswith(PACKAGED) and not inside.startswith(UNPACKAGED)
        return Read(path, RootedPath("system", inside), "system" if trusted else "", spelled)

    def stamps(self, reads: Iterable[Read]) -> dict[tuple[str, str], Stamp]:
        """Returns the present stamps of these files. A file that is gone has none."""
        stamps = ((read, self._disk.stamp(read.path)) for read in reads)
        return {read.location: stamp for read, stamp in stamps if stamp}

    def collect(
        self,
        reads: Iterable[Read],
        search: Iterable[str],
        compiler_folders: Iterable[str] = (),
        questions: Questions = NO_QUESTIONS,
    ) -> Inputs:
        """Hashes the files, and works out where a new file could change the outcome.

        Args:
            reads: The files.
            search: The folders that the command names, in which headers and libraries were looked for.
            compiler_folders: The folders that the compiler searches by itself, in order.
            questions: What the files ask.

        Raises:
            OSError: A file is gone.
        """
        reads = tuple(reads)
        files = {read.location: self._dependency(read) for read in reads}
        own = list(dict.fromkeys(os.path.normpath(folder) for folder in compiler_folders))
        folders = [folder for folder in dict.fromkeys(map(os.path.normpath, search)) if folder not in own]
        quoting = sorted({os.path.dirname(read.path) for read in reads if not read.tree})
        spelled = {path for read in reads for path in (read.path, read.spelled) if path}
        bases = {*folders, *own, *quoting, *(os.path.dirname(read.spelled) for read in reads if not read.tree)}
        names = questions.names | _names_below(bases, spelled)
        # The linker takes either for -lfoo, from the first folder that has one: both names are watched.
        stems = [os.path.splitext(name) for name in names]
        names |= {stem + suffix for stem, end in stems if end in LIBRARIES for suffix in LIBRARIES}
        searched = [folder for folder in dict.fromkeys([*quoting, *folders]) if not self.locate(folder + "/-").tree]
        own = [*(folder for folder in folders if folder not in searched), *own]  # those of trusted trees come first
        return self._absences(tuple(sorted(files.values())), sorted(names), searched, own, questions)

    def _dependency(self, read: Read) -> Dependency:
        with open(read.path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        return Dependency(*read.location, digest, read.tree)

    def _absences(
        self,
        files: tuple[Dependency, ...],
        names: list[str],
        searched: Sequence[str],
        own: Sequence[str],
        questions: Questions,
    ) -> Inputs:
        """Returns the inputs: the files, and which of the names are present in the searched folders now."""
        present, watched = set[RootedPath](), {self._nearest(folder) for folder in (*searched, *own)}
        compiler_folders = tuple(map(self._folder, own))
        looked_for = [(self._folder(folder), names) for folder in searched]
        looked_for += names_before(compiler_folders, files, self.roots)
        asked_in = (*map(self._folder, searched), *compiler_folders)
        for folder, candidates in [*looked_for, *((folder, questions.names) for folder in asked_in)]:
            base = folder.resolve(self.roots) or ""
            listing = self._disk.names(base)
            possible = [name for name in candidates if may_be_in(listing, name)]
            watched |= {self._nearest(os.path.dirname(os.path.join(base, name))) for name in possible}
            present |= {folder.join(name) for name in below(folder, possible, self.roots, self._disk)}
        answers = [Answer(INCLUDE + name, places(name, asked_in, self.roots, self._disk)) for name in questions.names]
        if questions.dated:
            answers.append(Answer(VARIABLE + DATE, (("", os.environ.get(DATE, "")),)))
        trees = {file.tree for file in files if file.tree}
        return Inputs(
            files=files,
            names=tuple(names),
            searched=tuple(map(self._folder, searched)),
            present=tuple(sorted(present)),
            folders=tuple(sorted({self._folder(folder) for folder in watched})),
            trusted_trees=tuple(sorted((tree, file) for tree, file in self._stamp_files.items() if tree in trees)),
            compiler_folders=compiler_folders,
            answers=tuple(sorted(answers)),
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

    If `..` follows a linked folder, text alone would lead elsewhere: then they stay.
    """
    plain = os.path.normpath(path)
    if "/../" in path and os.path.realpath(path) != os.path.realpath(plain):
        return path  # as it is: if the link is switched, it leads to another file
    return plain


def _names_below(folders: Iterable[str], paths: Iterable[str]) -> set[str]:
    """Returns every spelling by which an #include may have named one of the paths, with these folders searched."""
    bases = [folder.rstrip("/") + "/" for folder in folders]
    return {path[len(base) :] for path in paths for base in bases if path.startswith(base)}
