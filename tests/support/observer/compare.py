"""Compares what a build really asked for with what opforge worked out: whatever is in neither is a finding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from opforge.builders.declaration.kernel_roots import OPFORGE_ABI
from opforge.builders.toolchains.discovery import probe, programs
from opforge.cache.filesystem.disk import Disk
from opforge.cache.records.inputs import Inputs
from opforge.cache.records.validity import INCLUDE, VARIABLE, at, names_before, resolve
from opforge.foundation.environment import PLAN_VARIABLES, is_wrappers

from . import reasons
from .build import ObservedBuild
from .own_reasons import OwnReasons
from .reader import ABSENT, FOLDER, plain
from .reader import VARIABLE as ASKED

INTERFACE = (OPFORGE_ABI.name,)
"""What is vouched for by a number: see abi.INTERFACE."""

LINKERS = ("ld.bfd", "ld.gold", "ld.lld", "ld.mold")


class Finding(NamedTuple):
    """Something that a build depends on and that a load would not notice."""

    kind: str
    """`read`, `looked for`, `listed` or `variable`."""
    name: str
    """The path, or the variable's name."""
    program: str
    """The program that asked for it first."""

    def __str__(self) -> str:
        """Returns the finding as one line."""
        texts = {
            "read": "read and not an input",
            "looked for": "looked for and not watched",
            "listed": "listed and not watched",
            "variable": "asked for and in no key",
        }
        return f"{texts[self.kind]}: {self.name}, by {self.program}"


class Comparison(NamedTuple):
    """The outcome for one build."""

    findings: tuple[Finding, ...]
    gaps: tuple[str, ...]
    """Why the notes are incomplete."""
    excused: dict[str, str]
    """What is in no record, with the reason for which it need not be."""


def compare(build: ObservedBuild) -> Comparison:
    """Returns what a build asked for and opforge did not record."""
    record, own = Known(build), OwnReasons(build)
    observation, excused, findings = build.observation, dict[str, str](), list[Finding]()

    def judge(kind: str, questions: Iterable[tuple[str, str]], is_known: Callable[[str], bool]) -> None:
        for name, program in questions:
            if kind != "variable":
                name = _plain(name)
            if is_known(name):
                continue
            reason = reasons.reason(kind, name, program) or own.reason(kind, name, program)
            if reason:
                excused[name] = reason
            else:
                findings.append(Finding(kind, name, program))

    read = {path: program for path, program in observation.read.items() if not os.path.isdir(path)}
    listed = {path: program for path, program in observation.read.items() if path not in read}
    judge("read", sorted(read.items()), record.is_read)
    judge("looked for", sorted(observation.paths(ABSENT).items()), record.is_watched)
    judge("listed", sorted({**observation.paths(FOLDER), **listed}.items()), record.is_listed)
    judge("variable", sorted(observation.paths(ASKED).items()), record.is_variable)
    return Comparison(tuple(dict.fromkeys(findings)), (*build.gaps, *_unseen(build)), excused)


def _unseen(build: ObservedBuild) -> list[str]:
    """Returns the op's own sources, and what dependency files list, that no program read: the reader left no notes."""
    noted = plain(build.observation.read)
    noted |= {*map(_real, noted)}
    sources = (os.path.join(build.job.roots[source.root], source.path) for source in build.job.plan.sources)
    paths = dict.fromkeys([*map(os.path.normpath, sources), *sorted(build.listed)])
    return [f"nothing that was observed read {path}" for path in paths if _real(path) not in noted]


class Known:
    """What opforge knows of a build: its inputs, the compiler's identity, the names whose coming it notices."""

    def __init__(self, build: ObservedBuild) -> None:
        self._build, self._roots, self._disk = build, build.job.roots, Disk()
        inputs, toolchain = build.inputs, build.job.toolchain
        files = filter(None, (file.resolve(self._roots) for file in inputs.files))
        self._programs = {*toolchain.programs()}
        self._files = {name for path in (*files, *self._programs) for name in (os.path.normpath(path), _real(path))}
        self._written = plain(build.observation.written)
        self._names = _watched_names(inputs, self._roots)
        self._folders = {
            os.path.normpath(path)
            for folder in (*inputs.searched, *inputs.compiler_folders, *inputs.folders)
            if (path := folder.resolve(self._roots))
        }
        places = [pair for answer in inputs.answers if answer.question.startswith(INCLUDE) for pair in answer.values]
        self._answered = {os.path.normpath(path) for pair in places if (path := resolve(pair, self._roots))}
        # What may stand above a name that is looked for: the name cannot appear before it.
        self._above = {above for path in self._names for above in _folders_above(path)}
        self._absent = {os.path.normpath(path) for path in _absent(toolchain)}
        # Each load looks for these on PATH again.
        self._on_path = {*programs.path_folders(), *os.environ.get("COMPILER_PATH", "").split(os.pathsep)}
        self._started = {
            *LINKERS,
            *probe.PROGRAMS,
            *probe.STARTED_FOR.values(),
            *programs.STARTED,
            *(os.path.basename(word) for word in toolchain.argv),
        }
        self._trusted = [self._roots[name] + "/" for name in toolchain.trusted_roots() if name in self._roots]
        variables = [
            answer.question[len(VARIABLE) :] for answer in inputs.answers if answer.question.startswith(VARIABLE)
        ]
        # Those that the plan does not know are no variables of it even if they are set now: SHELL, say.
        self._variables = {*PLAN_VARIABLES, *toolchain.plan_env, *variables, *dict(build.job.plan.environment)}

    def _is_own(self, path: str) -> bool:
        own = (self._build.folder + "/", *(f"{self._roots[name]}/" for name in INTERFACE if name in self._roots))
        # gcc makes one name of the path of an object, for a profile.
        is_named = self._build.folder.replace("/", "#") in path
        return path in self._written or path.startswith(own) or is_named

    def is_read(self, path: str) -> bool:
        """Returns whether a file is an input, a program of the compiler, or the build's own."""
        # gcc opens a header to answer __has_include.
        return path in self._files | self._answered or self._is_own(path) or _real(path) in self._files

    def is_watched(self, path: str) -> bool:
        """Returns whether a load notices that a path has appeared."""
        folder, name = os.path.split(path)
        if {path, os.path.join(_real(folder), name)} & (self._names | self._above | self._absent) or self._is_own(path):
            return True
        if folder in self._on_path and name in self._started:
            return True
        if path.startswith(tuple(self._trusted)) or _real(folder).startswith(tuple(self._trusted)):
            return True  # the headers that state its version are among its programs
        # Nothing can appear in a folder that is not there before the folder itself does.
        return not os.path.exists(folder) and folder != path and self._is_folder_watched(folder)

    def _is_folder_watched(self, folder: str) -> bool:
        if folder in self._names or folder in self._absent or folder in self._folders:
            return True
        above = os.path.dirname(folder)
        return above != folder and not os.path.exists(above) and self._is_folder_watched(above)

    def is_listed(self, path: str) -> bool:
        """Returns whether a load notices that something has appeared in a folder."""
        return self._is_own(path) or {path, _real(path)} & {*self._programs, *self._folders} != set()

    def is_variable(self, name: str) -> bool:
        """Returns whether a variable is in a key or in the record."""
        return name in self._variables or is_wrappers(os.fsencode(name))  # the plan of a wrapper has all of these


def _folders_above(path: str) -> Iterator[str]:
    while (above := os.path.dirname(path)) not in (path, "/"):
        yield (path := above)


def _plain(path: str) -> str:
    """Returns a path without `.` and `..`, and with one slash at its beginning."""
    return os.path.normpath("/" + path.lstrip("/"))


def _real(path: str) -> str:
    return os.path.realpath(path)


def _watched_names(inputs: Inputs, roots: Mapping[str, str]) -> set[str]:
    """Returns the paths at which something that appears makes a load build again."""
    paths, folders = set[str](), [*inputs.searched, *inputs.compiler_folders]
    names = [answer.question[len(INCLUDE) :] for answer in inputs.answers if answer.question.startswith(INCLUDE)]
    groups = [(folder, {*inputs.names}) for folder in inputs.searched]
    groups += names_before(inputs.compiler_folders, inputs.files, roots)
    groups += [(folder, {*names}) for folder in folders]
    for folder, below in groups:
        base = resolve(folder, roots)
        if base:
            for spelling in {base, _real(base)}:
                paths |= {os.path.normpath(at(spelling, name)) for name in below}
    return paths


def _absent(toolchain: Any) -> list[str]:
    """Returns the paths at which another program or file of flags would be found first: a load looks for them."""
    infos = [
        getattr(part, name, {}) for part in (toolchain, getattr(toolchain, "host", None)) for name in ("_info", "info")
    ]
    return [path for info in infos for path in info.get("absent", ())]
