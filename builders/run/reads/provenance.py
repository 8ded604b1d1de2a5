"""Where the files that a build read come from, and where a new file would change it: from paths to `Inputs`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from opforge.builders.declaration.kernel_roots import TRUSTED_ROOTS
from opforge.cache.filesystem.disk import Disk, Stamp, digest_of
from opforge.cache.filesystem.packages import PackageFiles
from opforge.cache.records.inputs import Answer, Dependency, Inputs, RootedPath
from opforge.cache.records.trusted_trees import stamp_file
from opforge.cache.records.validity import (
    DAY,
    INCLUDE,
    MODIFIED,
    NAMES,
    PRECOMPILED,
    VARIABLE,
    Listings,
    answer_now,
    below,
    located,
    names_before,
    places,
    watched,
    with_twins,
)
from opforge.fast_path.lookup import DAY as TODAY
from opforge.fast_path.lookup import value_of

from .questions import NOTHING, Questions
from .surroundings import Surroundings, look_around

PYTHON_STAMP = "patchlevel.h"
"""The header that states Python's version: it is replaced together with an installation."""
PYTHON_FOLDERS = ("", "cpython", "internal", "internal/mimalloc", "internal/mimalloc/mimalloc")
"""The folders of Python's own headers, below its include folder. pip puts other packages' headers beside them."""
OF_PRECOMPILED = tuple(f"{end}/" for end in PRECOMPILED)
SOURCES = (".c", ".C", ".cc", ".cpp", ".cxx", ".c++", ".s", ".S", ".cu", ".hip", ".sycl", ".cl")
"""The names of files that are compiled, also if another one includes them."""


class Read(NamedTuple):
    """A file that the compiler read."""

    path: str
    location: RootedPath
    tree: str
    """The trusted tree that it belongs to; empty if none."""
    spelled: str = ""
    """The path as the compiler has it: `folder/../x.h` shows that `../x.h` was looked for in `folder`."""


class Provenance:
    """Assigns paths to the roots of one plan, and to the packages that have installed them.

    Args:
        roots: The paths of the plan's roots, by name.
        disk: The disk.
        trusted_roots: The roots of a toolchain that change with its version only, each with its stamp file.
        packages: The lists of installed packages.
        outside: Folders outside of every root to which `..` leads from one.
        sources: The plan's sources.
    """

    def __init__(
        self,
        roots: Mapping[str, str],
        disk: Disk,
        trusted_roots: Mapping[str, str] | None = None,
        packages: PackageFiles | None = None,
        outside: Iterable[RootedPath] = (),
        sources: Iterable[RootedPath] = (),
    ) -> None:
        self._sources = {_plain(os.path.join(roots[source.root], source.path)) for source in sources}
        self.roots, self._disk = roots, disk
        bases = [(name, path.rstrip("/") + "/") for name, path in roots.items() if name != "system"]
        self._bases = sorted(bases, key=lambda base: -len(base[1]))
        located = [(os.path.join(roots[folder.root], folder.path, ""), folder) for folder in outside]
        plain = [(f"{_plain(path)}/", folder) for path, folder in located if _plain(path) != path]  # not behind a link
        of_roots = [(path, RootedPath(name, "")) for name, path in self._bases]
        self._near = sorted([*plain, *of_roots], key=lambda pair: -len(pair[0]))
        self._packages = packages or PackageFiles(disk)
        self._toolchain_trees = {
            name: RootedPath(name, path)
            for name, path in (trusted_roots or {}).items()
            if name in roots and not self._packages.is_in_wheels(roots[name])
        }
        if "python" in roots and disk.exists(os.path.join(roots["python"], PYTHON_STAMP)):
            self._toolchain_trees["python"] = RootedPath("python", PYTHON_STAMP)
        self._trees = dict(self._toolchain_trees)
        # Roots in which every header is a package's: their folders are searched as the compiler's own are.
        self._trusted = {*self._toolchain_trees, *(trusted_roots or {}), "torch"}
        self._beside: dict[str, RootedPath] = {}
        self._reads: dict[str, Read] = {}
        self._dependencies: dict[Read, Dependency] = {}

    def locate(self, path: str) -> Read:
        """Returns a file with the nearest root above it and the trusted tree that it belongs to.

        The answer is kept until the next run: the units of an op read the same headers.
        """
        if path not in self._reads:
            self._reads[path] = self._locate(path)
        return self._reads[path]

    def _locate(self, path: str) -> Read:
        spelled, path = path, _plain(path)
        name = self._root_of(path)
        location = self._location(name, path)
        # A source may be edited in place, to try something; the headers of a package are as it was installed.
        listed = None if path in self._sources or path.endswith(SOURCES) else self._packages.find(path)
        if listed:
            self._trees[listed.package] = stamp_file(listed.package, listed.stamp_file, name, self.roots)
            return Read(path, location, listed.package, spelled)
        if name == "system":
            return Read(path, self._location_beside(path, spelled) or location, "", spelled)
        is_others = name == "python" and os.path.dirname(location.path) not in PYTHON_FOLDERS
        if name in self._toolchain_trees and not is_others:
            return Read(path, location, name, spelled)
        # Of `a/b/../c` all is kept: if a link takes the place of `b`, it leads to another file.
        if "/../" in spelled and self._root_of(spelled) == name:
            path, location = spelled, self._location(name, spelled)
        return Read(path, location, "", spelled)

    def _location(self, root: str, path: str) -> RootedPath:
        return RootedPath(root, path[len(self.roots[root].rstrip("/")) + 1 :] if root in self.roots else path[1:])

    def _root_of(self, path: str) -> str:
        return next((name for name, base in self._bases if f"{path}/".startswith(base)), "system")

    def _location_beside(self, path: str, spelled: str) -> RootedPath | None:
        """Returns a file outside of every root by the root from which `..` leads to it; None if none does.

        It is the op's own like the files of that root: as a file of the system it would be in no record of an entry.
        """
        folder = os.path.dirname(path)
        if folder not in self._beside:
            near = (pair for text in (spelled, path) for pair in self._near if text.startswith(pair[0]))
            base, location = next(near, ("/", RootedPath("system", "")))
            below = os.path.relpath(folder, base)
            is_there = os.path.realpath(os.path.join(base, below)) == os.path.realpath(folder)
            if not is_there or location.root in TRUSTED_ROOTS:
                return None
            self._beside[folder] = location.join(below)
        return self._beside[folder].join(os.path.basename(path))

    def stamps(self, reads: Iterable[Read]) -> dict[tuple[str, str], Stamp]:
        """Returns the present stamps of these files. A file that is gone has none."""
        stamps = ((read, self._disk.stamp(read.path)) for read in reads)
        return {read.location: stamp for read, stamp in stamps if stamp}

    def collect(
        self,
        reads: Iterable[Read],
        search: Iterable[str],
        compiler_folders: Iterable[str] = (),
        questions: Questions = NOTHING,
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
        # A folder is searched by its real path, and a compiler may list what it found there by that of a link.
        real = {folder: os.path.realpath(folder) for folder in {os.path.dirname(read.path) for read in reads}}
        spelled |= {os.path.join(real[folder], name) for folder, name in (os.path.split(read.path) for read in reads)}
        bases = {*folders, *own, *quoting, *(os.path.dirname(read.spelled) for read in reads if not read.tree)}
        names = with_twins(questions.names | _names_below(bases, spelled))
        own_files = {path for read in reads if not read.tree for path in (read.path, read.spelled) if path}
        endings = [f"{end}{of_folder}" for end in PRECOMPILED for of_folder in ("", "/")]
        names |= {f"{name}{end}" for name in _names_below(bases, own_files) for end in endings}
        searched = [
            folder for folder in dict.fromkeys([*quoting, *folders]) if self._root_of(folder) not in self._trusted
        ]
        own = [*(folder for folder in folders if folder not in searched), *own]  # those of trusted trees come first
        return self._absences(tuple(sorted(files.values())), sorted(names), searched, own, questions)

    def surroundings(self, work: str, started: int, sources: Iterable[str], search: Iterable[str]) -> Surroundings:
        """Returns the surroundings of the op before a run that began at `started` in the folder `work`.

        `sources` are the folders of its sources; `search` are all further ones that are searched. What was located
        before is forgotten.
        """
        self._reads.clear()
        self._dependencies.clear()
        roots = [path for name, path in self.roots.items() if name not in {*TRUSTED_ROOTS, "system"}]
        search = [*search]
        own = [folder for folder in search if self._root_of(os.path.normpath(folder)) not in {*self._trusted, "system"}]
        return look_around(self._disk, work, started, [*sources, *own, *roots], search)

    def is_own(self, read: Read) -> bool:
        """Returns whether a file is neither a package's nor the system's."""
        return not read.tree and read.location.root != "system"

    def looked_for(self, inputs: Inputs) -> list[str]:
        """Returns the paths that were looked for, though not read, and whose presence or absence `inputs` tell."""
        read = {file[:2] for file in inputs.files}
        paths = {path for path in inputs.present if path not in read}
        folders = (*inputs.searched, *inputs.compiler_folders)
        names = [answer.question[len(INCLUDE) :] for answer in inputs.answers if answer.question.startswith(INCLUDE)]
        paths |= {path for folder in folders for name in names if (path := folder.join(name)) not in read}
        return sorted(filter(None, (path.resolve(self.roots) for path in paths)))

    def _dependency(self, read: Read) -> Dependency:
        """Returns a file with its digest, which is kept until the next run."""
        if read not in self._dependencies:
            self._dependencies[read] = self._hashed(read)
        return self._dependencies[read]

    def _hashed(self, read: Read) -> Dependency:
        with open(read.path, "rb", buffering=0) as file:
            digest = digest_of(file.fileno(), os.fstat(file.fileno()).st_size)
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
        present, precompiled = set[RootedPath](), set[RootedPath]()
        compiler_folders = tuple(map(self._folder, own))
        looked_for = [(self._folder(folder), set(names)) for folder in searched]
        looked_for += names_before(compiler_folders, files, self.roots)
        asked_in = (*map(self._folder, searched), *compiler_folders)
        listings = Listings(self._disk)
        for folder, candidates in [*looked_for, *((folder, questions.names) for folder in asked_in)]:
            base = folder.resolve(self.roots) or ""
            there = below(folder, listings.may_hold(base, candidates), self.roots, listings)
            present |= {folder.join(name) for name in there}
            precompiled |= {folder.join(name) for name in there if name.endswith(OF_PRECOMPILED)}
        folders = located(asked_in, self.roots)
        answers = [Answer(INCLUDE + name, places(name, folders, listings)) for name in questions.names]
        answers += [Answer(VARIABLE + name, (("", os.environ.get(name, "")),)) for name in questions.variables]
        if questions.has_day:
            answers.append(Answer(DAY, (("", value_of(TODAY)),)))
        asked = [(MODIFIED, self.locate(path).location) for path in questions.modified]
        asked += [(NAMES, self._folder(folder)) for folder in searched] if questions.asks_for_any else []
        asked += [(NAMES, folder) for folder in sorted(precompiled)]
        for question, place in asked:
            now = answer_now(question, place, self.roots)
            answers.append(Answer(question, (("", now), (place.root, place.path))))
        self._packages.save()
        trees = {file.tree for file in files if file.tree}
        inputs = Inputs(
            files=files,
            names=tuple(names),
            searched=tuple(map(self._folder, searched)),
            present=tuple(sorted(present)),
            trusted_trees=tuple(sorted((tree, file) for tree, file in self._trees.items() if tree in trees)),
            compiler_folders=compiler_folders,
            answers=tuple(sorted(answers)),
        )
        leading = {*watched(inputs._asdict(), self.roots, listings, self._disk)}
        return inputs._replace(folders=tuple(sorted({*map(self._folder, leading)})))

    def _folder(self, path: str) -> RootedPath:
        location = self.locate(os.path.join(_plain(path), "-")).location
        return RootedPath(location.root, os.path.dirname(location.path))


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
