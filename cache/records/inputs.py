"""The inputs of a build: files that it read, and paths that it did not find. They decide whether its entry is valid."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import entry_key

from .validity import INCLUDE, NAMES, PLACED, PRECOMPILED, Listings, appeared


class RootedPath(NamedTuple):
    """A path below a named root, so that nothing depends on where the root is."""

    root: str
    path: str

    def resolve(self, root_paths: Mapping[str, str]) -> str | None:
        """Returns the absolute path, or None if this machine has no such root."""
        base = root_paths.get(self.root)
        return None if base is None else os.path.join(base, self.path)

    def join(self, name: str) -> RootedPath:
        """Returns the path of a name below this one, without `.` and `..`."""
        return RootedPath(self.root, os.path.normpath(os.path.join(self.path, name)))


class Dependency(NamedTuple):
    """A file that the compiler read."""

    root: str
    path: str
    digest: str
    tree: str = ""
    """The trusted tree that it belongs to. Empty if none: then the file is checked by its own stamp."""

    def resolve(self, root_paths: Mapping[str, str]) -> str | None:
        """Returns the absolute path, or None if this machine has no such root."""
        base = root_paths.get(self.root)
        return None if base is None else os.path.join(base, self.path)


class Answer(NamedTuple):
    """Questions of a source to the preprocessor that read no file, with their answers."""

    question: str
    """`include NAME` for __has_include and __has_embed; `variable NAME` for an environment variable; DAY and PLACED."""
    values: tuple[tuple[str, str], ...]
    """The paths below roots at which the name was; or one pair of an empty root and the variable's value."""


class Inputs(NamedTuple):
    """Everything outside its plan that the outcome of a build depends on."""

    files: tuple[Dependency, ...]
    names: tuple[str, ...] = ()
    """Every name below a search folder under which a header was, or could have been, looked for."""
    searched: tuple[RootedPath, ...] = ()
    """The folders, in no trusted tree, in which those names were looked for. A name that appears there may shadow a
    header."""
    present: tuple[RootedPath, ...] = ()
    """The names that existed in a searched folder at the time. The record leaves out those of `files`."""
    folders: tuple[RootedPath, ...] = ()
    """The folders whose stamps change when a name appears in a searched folder."""
    trusted_trees: tuple[tuple[str, RootedPath], ...] = ()
    """(tree, stamp file): while the stamp file is unchanged, so are the files of that tree. An example is torch's
    wheel, whose stamp file is its RECORD."""
    compiler_folders: tuple[RootedPath, ...] = ()
    """The folders of trusted trees and those that the compiler searches by itself: searched in this order, after
    `searched`."""
    answers: tuple[Answer, ...] = ()
    """They are part of the entry's key."""

    def result_key(self, plan_key: str) -> str:
        """Returns the key of the entry that was built from these inputs by a plan."""
        return entry_key(plan_key, [file[:3] for file in self.files], self.answers)

    def to_json(self) -> dict[str, object]:
        """Returns a JSON-able form that `from_json` reads back."""
        return {
            "files": sorted(self.files),
            "names": sorted(self.names),
            "searched": sorted(self.searched),
            "present": sorted(self.present),
            "folders": sorted(self.folders),
            "trusted_trees": sorted((tree, *stamp_file) for tree, stamp_file in self.trusted_trees),
            "compiler_folders": list(self.compiler_folders),
            "answers": sorted(self.answers),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Inputs:
        """Reads the form that `to_json` returns, and that `schemas.INPUTS` has passed."""
        return cls(
            files=tuple(Dependency(*fields) for fields in data["files"]),
            names=tuple(data["names"]),
            searched=tuple(RootedPath(*fields) for fields in data["searched"]),
            present=tuple(RootedPath(*fields) for fields in data["present"]),
            folders=tuple(RootedPath(*fields) for fields in data["folders"]),
            trusted_trees=tuple((tree, RootedPath(root, path)) for tree, root, path in data["trusted_trees"]),
            compiler_folders=tuple(RootedPath(*fields) for fields in data["compiler_folders"]),
            answers=tuple(
                Answer(text, tuple((root, path) for root, path in values)) for text, values in data["answers"]
            ),
        )

    def checked_singly(self) -> Inputs:
        """Returns these inputs with no file in a trusted tree: all are checked one by one."""
        files = tuple(file._replace(tree="") for file in self.files)
        return self._replace(files=files, trusted_trees=())

    def without(self, roots: Collection[str]) -> Inputs:
        """Returns these inputs without those below the named roots."""

        def outside(answer: Answer) -> Answer:
            return answer._replace(values=tuple(value for value in answer.values if value[0] not in roots))

        return self._replace(
            files=tuple(file for file in self.files if file.root not in roots),
            searched=tuple(folder for folder in self.searched if folder.root not in roots),
            present=tuple(name for name in self.present if name.root not in roots),
            folders=tuple(folder for folder in self.folders if folder.root not in roots),
            compiler_folders=tuple(folder for folder in self.compiler_folders if folder.root not in roots),
            answers=tuple(
                outside(answer)
                for answer in self.answers
                if answer.question not in PLACED or answer.values[1][0] not in roots
            ),
        )

    def shipped(self, trusted_roots: Collection[str], root_paths: Mapping[str, str], disk: Disk) -> Inputs:
        """Returns the inputs that go into the record of an entry: those below the op's own roots.

        Call it where the op was built. Of a name that is in no searched folder only the shortest part is kept that is
        in none of them either: nothing below it can appear before that part does. Variables are left out: what is
        shipped keeps the date of its build.
        """
        own = self.without(trusted_roots).checked_singly()
        bases = [base for folder in own.searched if (base := folder.resolve(root_paths))]
        names = _shortest_absent(own.names, bases, disk)
        answers = tuple(answer for answer in own.answers if _is_shipped(answer))
        read = {RootedPath(file.root, file.path) for file in own.files}  # that these were there is implied
        present = tuple(path for path in own.present if path not in read)
        return own._replace(names=names, present=present, answers=answers)

    def has_file_below(self, folders: Collection[RootedPath]) -> bool:
        """Returns whether one of the files was found in one of these folders."""
        return any(_is_below(file, folders) for file in self.files)

    def of_system(
        self,
        folders: Collection[RootedPath],
        others: Collection[RootedPath],
        root_paths: Mapping[str, str],
        disk: Disk,
    ) -> Inputs:
        """Returns the inputs outside of every root that go into the record of an entry.

        Everything in `folders` is held, and what else was read or looked for: a header in them may include any file
        by its path. Left out are trusted trees, and `others`, which are folders of which machines have their own.
        """

        def is_held(path: RootedPath | Dependency) -> bool:
            return _is_below(path, folders) or (path.root == "system" and not _is_below(path, others))

        searched = tuple(folder for folder in self.searched if is_held(folder))
        bases = [base for folder in searched if (base := folder.resolve(root_paths))]
        held = (file for file in self.files if is_held(file) and (not file.tree or _is_below(file, folders)))
        files = tuple(file._replace(tree="") for file in held)
        read = {RootedPath(file.root, file.path) for file in files}
        return Inputs(
            files=files,
            names=_shortest_absent(self.names, bases, disk),
            searched=searched,
            present=tuple(path for path in self.present if path.root == "system" and path not in read),
        )

    def appeared(self, root_paths: Mapping[str, str], disk: Disk) -> str | None:
        """Returns the path of a name that was absent from a searched folder and is there now; None if there is none."""
        return appeared(self._asdict(), root_paths, Listings(disk))

    def asked_names(self) -> list[str]:
        """Returns the names that sources ask for by __has_include and __has_embed."""
        questions = [answer.question for answer in self.answers]
        return [question[len(INCLUDE) :] for question in questions if question.startswith(INCLUDE)]


def _is_below(path: RootedPath | Dependency, folders: Iterable[RootedPath]) -> bool:
    """Returns whether a path is one of the folders, or is below one."""
    return any(path.root == root and f"{path.path}/".startswith(f"{folder}/") for root, folder in folders)


def _is_shipped(answer: Answer) -> bool:
    """Returns whether an answer is in the record of an entry: what was asked by an include, of names in a folder."""
    is_of_precompiled = answer.question == NAMES and answer.values[1][1].endswith(PRECOMPILED)
    return is_of_precompiled or answer.question.startswith(INCLUDE)


def _shortest_absent(names: Iterable[str], folders: Collection[str], disk: Disk) -> tuple[str, ...]:
    """Returns of each relative path the first part that is in none of the folders, with a slash; else all of it."""
    is_there = functools.cache(lambda head: any(disk.exists(os.path.join(folder, head)) for folder in folders))

    def shortest(name: str) -> str:
        parts = name.split("/")
        heads = ("/".join(parts[:end]) for end in range(1, len(parts)) if parts[0] not in ("", ".", ".."))
        return next((f"{head}/" for head in heads if not is_there(head)), name)

    return tuple(sorted(set(map(shortest, names))))
