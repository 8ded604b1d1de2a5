"""Whether an entry is still valid: its inputs are compared by their contents, and remembered by their stamps.

Inputs are compared in the form that a record has: by the names of the fields of `Inputs`, each a list of names, of
paths as (root, path), or of files as (root, path, digest, tree). A look-up that remembers nothing reads that form from
a record, and making objects of it would take longer than comparing it.

A hit of the fast path compares stamps alone: `fast_path/lookup.py` asks `foundation/remembered_values.py`, and comes
here if one has changed.

A racy stamp (see `opforge.cache.filesystem.disk`) is not remembered, so the file is hashed at the next look-up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.fast_path import lookup
from opforge.foundation.remembered_values import ABSENT

from .entry import Stamped

INCLUDE, VARIABLE = "include ", "variable "
"""How the questions of answers begin."""
DAY, MODIFIED, NAMES = "day", "modified", "names"
"""Questions: the day of the build, for __DATE__; when a file was modified, for __TIMESTAMP__; the names in a folder,
for operators whose names are put together, and of precompiled headers, of which a compiler takes any that fits. The
values are the answer, and but for the day the file or folder."""
PLACED = {MODIFIED: "has a new time, and has __TIMESTAMP__", NAMES: "has other names, and a build may read any of them"}
PRECOMPILED = (".gch", ".pch")
"""Suffixes of a header's name: compilers take such a file, or one in such a folder, in place of the header."""
Folder = TypeVar("Folder", bound=Sequence[str])
"""A folder below a root, as (root, path)."""
MOST_FOLDERS = 500
"""How many folders are compared for a source that may ask for any header."""
CACHE_TAG = "CACHEDIR.TAG"
"""The file that says that a folder is a cache."""
SHARED = ".so"
LIBRARIES = (SHARED, ".a")
OUTSIDE = frozenset({"", ".", ".."})
"""How a name begins that a folder's listing says nothing of."""
_NO_STAMPS: Mapping[tuple[str, str], tuple[int, ...]] = {}


class EveryName(frozenset[str]):
    """The names in a folder without case, as vfat, NTFS and ext4 have them: it holds any spelling of each.

    A listing does not show which spellings the system takes, so each name is looked for.
    """

    def __contains__(self, name: object) -> bool:
        return True


class Listings:
    """The names in folders as one look-up sees them: each folder is listed once."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._names: dict[str, frozenset[str]] = {}

    def names(self, folder: str) -> frozenset[str]:
        """Returns the names in a folder; none if it cannot be listed."""
        if folder not in self._names:
            names = self._disk.names(folder)
            self._names[folder] = names if self._has_case(folder, names) else EveryName(names)
        return self._names[folder]

    def _has_case(self, folder: str, names: frozenset[str]) -> bool:
        """Returns whether names that differ in case alone are others; also if there is no name to ask with."""
        for name in names:
            other = name.swapcase()
            if other != name and name.isascii():
                return other in names or not self._disk.exists(at(folder, other))
        return True

    def first_parts(self, folders: Iterable[tuple[Sequence[str], str]]) -> frozenset[str]:
        """Returns how a name that is in one of these located folders can begin: by far not all names do."""
        listings = [self.names(base) for _folder, base in folders]
        if any(isinstance(names, EveryName) for names in listings):
            return EveryName()
        return OUTSIDE.union(*listings)

    def may_hold(self, folder: str, names: Iterable[str]) -> list[str]:
        """Returns the paths below a folder that can exist, by the folder's listing. One that leaves it always may."""
        held = self.names(folder)
        return [name for name in names if (first := name.partition("/")[0]) in held or first in OUTSIDE]

    def holds(self, folder: str, name: str) -> bool:
        """Returns whether a compiler would find a file there: it passes over folders and dangling links.

        A name that ends with a slash stands for all names below it: then a folder counts.
        """
        is_there = self._disk.exists if name.endswith("/") else self._disk.is_file
        return bool(self.may_hold(folder, [name])) and is_there(at(folder, name))


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
        self._listings = Listings(disk)
        for (root, path), stamp in stamps.items():
            if root in root_paths:
                self._stamps[at(root_paths[root], path)] = tuple(stamp)

    def stamps(self, *compared: Mapping[str, Any]) -> Stamped:
        """Returns the stamps of inputs. A path below a root that this machine does not have is left out."""
        each = [self._stamps_of(inputs) for inputs in compared]
        parts = zip(*each, strict=True)
        files, others, values = (dict.fromkeys(pair for pairs in part for pair in pairs) for part in parts)
        return Stamped(tuple(files), tuple(others), tuple(values))

    def _stamps_of(self, inputs: Mapping[str, Any]) -> Stamped:
        paths = self._paths([file for file in inputs["files"] if not file[3]])
        recorded = located([*inputs["folders"], *(tree[1:] for tree in inputs["trusted_trees"])], self._root_paths)
        folders = [path.rstrip("/") or "/" for _rooted, path in recorded]
        files = tuple([(path, self._stamp(path)) for path in paths])
        others = {path: self._stamp(path) for path in folders}
        for path in watched(inputs, self._root_paths, self._listings, self._disk):  # which lists what is stamped
            others[path] = self._stamp(path)
        return Stamped(files, tuple(others.items()), tuple(variables(inputs["answers"])))

    def problem(self, *compared: Mapping[str, Any]) -> str | None:
        """Returns the first thing that differs from what an entry was built from, or None. Hashes every file."""
        return next(filter(None, map(self._problem_of, compared)), None)

    def _problem_of(self, inputs: Mapping[str, Any]) -> str | None:
        for root, path_below, recorded, _tree in inputs["files"]:
            if root not in self._root_paths:
                return f"there is no root {root!r} here"
            path = at(self._root_paths[root], path_below)
            digest = self._digest(path)
            if digest is None:
                return f"{path} no longer exists"
            if digest != recorded:
                return f"{path} has changed"
        if new := appeared(inputs, self._root_paths, self._listings):
            return f"{new} has appeared, and may shadow a header"
        return changed_answer(inputs, self._root_paths, self._listings)

    def _paths(self, files: Iterable[Sequence[str]]) -> list[str]:
        return [path for file in files if (path := resolve(file, self._root_paths)) is not None]

    def _stamp(self, path: str) -> tuple[int, ...]:
        if path not in self._stamps:
            self._stamps[path] = tuple(self._disk.stamp(path) or ABSENT)
        return self._stamps[path]

    def _digest(self, path: str) -> str | None:
        if path not in self._digests:
            self._stamp(path)
            self._digests[path] = self._disk.digest(path)
        return self._digests[path]


def appeared(inputs: Mapping[str, Any], root_paths: Mapping[str, str], listings: Listings) -> str | None:
    """Returns the path of a name that was absent from a searched folder and is there now; None if there is none."""
    present = {(path[0], path[1]) for path in (*inputs["present"], *inputs["files"])}
    for folder, base, names in looked_for(inputs, root_paths, listings):
        for name in names:
            if _join(folder, name) not in present and listings.holds(base, name):
                return at(base, name)
    return None


def looked_for(
    inputs: Mapping[str, Any], root_paths: Mapping[str, str], listings: Listings
) -> list[tuple[Sequence[str], str, list[str]]]:
    """Returns the folders in which names could shadow what was read: each with its path and those that it may hold."""
    bases = located(inputs["searched"], root_paths)
    listed = listings.first_parts(bases)
    by_first: dict[str, list[str]] = {}
    for name in inputs["names"]:
        first = name.partition("/")[0]
        if first in listed:
            by_first.setdefault(first, []).append(name)
    result: list[tuple[Sequence[str], str, list[str]]] = []
    for folder, base in bases:
        held = listings.names(base)
        groups = [names for first, names in by_first.items() if first in held or first in OUTSIDE]
        result.append((folder, base, [name for names in groups for name in names]))
    for own, before in names_before(inputs["compiler_folders"], inputs["files"], root_paths):
        base = resolve(own, root_paths) or ""
        result.append((own, base, sorted(listings.may_hold(base, before) if base else [])))
    return result


def watched(inputs: Mapping[str, Any], root_paths: Mapping[str, str], listings: Listings, disk: Disk) -> Iterator[str]:
    """Yields the folders whose stamps change if a name that was looked for appears or goes, as the disk is now.

    Those that were recorded at the build are not enough: a folder or a link that has come since leads to others. Each
    is yielded before it is listed, so that its stamp is from before.
    """
    folders = located([*inputs["searched"], *inputs["compiler_folders"]], root_paths)
    for _folder, base in folders:
        yield disk.nearest(base.rstrip("/") or "/")
    for _question, values in filter(lambda answer: answer[0] == NAMES, inputs["answers"]):
        yield from (folder for folder, _names in _below(resolve(values[1], root_paths) or ""))
    headers = [question[len(INCLUDE) :] for question, _values in inputs["answers"] if question.startswith(INCLUDE)]
    possible = [(base, listings.may_hold(base, headers)) for _folder, base in folders]
    possible += [(base, names) for _folder, base, names in looked_for(inputs, root_paths, listings)]
    for base, names in possible:
        for name in names:
            for path in disk.links_from(at(base, name.rstrip("/"))):
                yield disk.nearest(os.path.dirname(path))


def changed_answer(inputs: Mapping[str, Any], root_paths: Mapping[str, str], listings: Listings) -> str | None:
    """Returns the reason why an answer is another one now than at the build; None if all are the same."""
    for name, value in variables(inputs["answers"]):
        if lookup.value_of(name) != value:
            return (
                "the day has changed, and a file has __DATE__"
                if name == lookup.DAY
                else f"the variable {name} has changed"
            )
    for question, values in inputs["answers"]:
        if question in PLACED and answer_now(question, values[1], root_paths) != values[0][1]:
            return f"{'/'.join(values[1])} {PLACED[question]}"
    folders = located([*inputs["searched"], *inputs["compiler_folders"]], root_paths)
    listed = listings.first_parts(folders)
    for question, values in inputs["answers"]:
        if question.startswith(INCLUDE):
            name = question[len(INCLUDE) :]
            now = places(name, folders, listings) if name.partition("/")[0] in listed else ()
            if now != tuple(sorted((root, path) for root, path in values)):
                verb = "is gone" if len(now) < len(values) else "has appeared"
                return f"{name}, which a source asks for by __has_include, {verb}"
    return None


def answer_now(question: str, place: Sequence[str], root_paths: Mapping[str, str]) -> str:
    """Returns the answer to one of the questions MODIFIED and NAMES; empty if there is no such file.

    `place` is the file or folder, by its root.
    """
    path = resolve(place, root_paths) or ""
    if question == NAMES:
        return key_of([(os.path.relpath(folder, path), names) for folder, names in _below(path)])
    try:
        return str(int(os.stat(path).st_mtime))
    except (OSError, ValueError):
        return ""


def _below(top: str) -> Iterator[tuple[str, list[str]]]:
    """Yields a folder and those below it, with the names of the files in each; no caches and no hidden folders."""
    for folder, folders, names in islice(os.walk(top), MOST_FOLDERS):
        if CACHE_TAG in names:
            folders.clear()
        else:
            folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
            yield folder, sorted(names)


def variables(answers: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Returns the environment variables whose values are a part of the library, with the values at the build.

    The day counts as one.
    """
    days = [(lookup.DAY, values[0][1]) for question, values in answers if question == DAY]
    return days + [
        (question[len(VARIABLE) :], values[0][1]) for question, values in answers if question.startswith(VARIABLE)
    ]


def located(folders: Iterable[Sequence[str]], root_paths: Mapping[str, str]) -> list[tuple[Sequence[str], str]]:
    """Returns the folders below roots that this machine has, each with its absolute path."""
    return [(folder, base) for folder in folders if (base := resolve(folder, root_paths)) is not None]


def places(name: str, folders: Iterable[tuple[Sequence[str], str]], listings: Listings) -> tuple[tuple[str, str], ...]:
    """Returns the paths below roots at which a name is in these located folders.

    They are sorted: a record does not keep the order of the folders, which the plan and the files decide.
    """
    return tuple(sorted({_join(folder, name) for folder, base in folders if listings.holds(base, name)}))


def names_before(
    folders: Sequence[Folder], files: Iterable[Sequence[str]], root_paths: Mapping[str, str]
) -> list[tuple[Folder, set[str]]]:
    """Returns for each folder the names that would be found there first.

    They are the names of files that were found in a later folder, and of the shared libraries that would be taken
    instead of its own archives.
    """
    if not folders:
        return []
    paths = [path for file in files if (path := resolve(file, root_paths))]
    bases = [at(base, "") if (base := resolve(folder, root_paths)) else "" for folder in folders]
    result, names = [], set[str]()
    for folder, base in zip(reversed(folders), reversed(bases), strict=True):
        here = {path[len(base) :] for path in paths if path.startswith(base)} if base else set()
        # In one folder the linker prefers a shared library to an archive.
        result.append((folder, names | {name for name in with_twins(here) - here if name.endswith(SHARED)}))
        names |= with_twins(here)
    return result[::-1]


def with_twins(names: Iterable[str]) -> set[str]:
    """Returns the names, and for each library that of its other kind.

    The linker takes either for -lfoo, from the first folder that has one.
    """
    twins, names = {".a": ".so", ".so": ".a"}, set(names)
    stems = map(os.path.splitext, [name for name in names if name.endswith(LIBRARIES)])
    return names | {stem + twins[end] for stem, end in stems}


def below(folder: Sequence[str], names: Iterable[str], root_paths: Mapping[str, str], listings: Listings) -> set[str]:
    """Returns the names that exist in a folder."""
    base = resolve(folder, root_paths)
    return set() if base is None else {name for name in names if listings.holds(base, name)}


def at(folder: str, name: str) -> str:
    """Returns the path of a name in a folder, as os.path.join, which takes five times as long."""
    return name if name[:1] == "/" else f"{folder}{name}" if folder[-1:] == "/" else f"{folder}/{name}"


def resolve(rooted: Sequence[str], root_paths: Mapping[str, str]) -> str | None:
    """Returns the absolute path of (root, path, ...), or None if this machine has no such root."""
    base = root_paths.get(rooted[0])
    return None if base is None else at(base, rooted[1])


def _join(folder: Sequence[str], name: str) -> tuple[str, str]:
    path = f"{folder[1]}/{name}" if folder[1] else name
    if "./" in path or "//" in path or path.endswith(("/", "/.", "/..")):
        path = os.path.normpath(path)  # takes as long as looking for the file: not for each name
    return folder[0], path
