"""Compares what a build really asked for with what opforge worked out: whatever is in neither is a finding."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from opforge.builders.run.dependencies import LIBRARY_VARIABLES
from opforge.builders.spec.kernel_roots import OPFORGE_ABI
from opforge.builders.toolchains import PASSED_ENV, PLAN_ENV, is_wrappers, triton_worker
from opforge.builders.toolchains.discovery import probe, programs
from opforge.builders.toolchains.triton import TritonToolchain
from opforge.cache.filesystem.disk import Disk
from opforge.cache.records.inputs import Inputs
from opforge.cache.records.validity import INCLUDE, VARIABLE, at, names_before, resolve

from . import reasons
from .build import ObservedBuild
from .reader import ABSENT, FOLDER, plain
from .reader import VARIABLE as ASKED

INTERFACE = (OPFORGE_ABI.name,)
"""What is vouched for by a number: see abi.INTERFACE."""


MULTILIB = re.compile(r"/(lib|[\w-]+-linux-gnu)(/\d+|/specs|/crt\w\.o)*")
"""What gcc looks for in a folder of LIBRARY_PATH and in those of -B."""


LIBRARIES_OF_CLANG = re.compile(r"/(lib(32|64|x32)?|[\w-]+-linux-gnu)(/.*)?")
PYTHON = re.compile(
    r"/lib/python[\d.]+(/|$)|/(python\d+\.zip|pybuilddir\.txt|Modules/Setup.*|pyvenv\.cfg|[\w.]+\._pth)$"
)
"""Python's own files, the packages beside them, and where it looks for both."""
MODULE = re.compile(r"/site-packages/(?!triton/|_distutils_hack/).*\.pyc?$")
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
    record = Known(build)
    observation, excused, findings = build.observation, dict[str, str](), list[Finding]()

    def judge(kind: str, questions: Iterable[tuple[str, str]], is_known: Callable[[str], bool]) -> None:
        for name, program in questions:
            if kind != "variable":
                name = _plain(name)
            if is_known(name):
                continue
            reason = reasons.reason(kind, name, program) or record.reason(kind, name, program)
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
    """Returns the op's own sources that no program read: their reader left no notes."""
    read = plain(build.observation.read)
    paths = (os.path.join(build.job.roots[source.root], source.path) for source in build.job.plan.sources)
    return [f"nothing that was observed read {path}" for path in map(os.path.normpath, paths) if path not in read]


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
        self._beside_driver = os.path.dirname(os.path.dirname(toolchain.argv[0]))
        values = (os.environ.get(name, "") for name in LIBRARY_VARIABLES)
        self._library_folders = [os.path.normpath(folder) for value in values for folder in value.split(":") if folder]
        # The linker's own way to look for a library may be to list the folder.
        self._libraries = {os.path.normpath(folder) for folder in toolchain.library_folders()}
        self._packaged = {
            os.path.dirname(path) for file in inputs.files if file.tree and (path := file.resolve(self._roots))
        }
        search = (folder.resolve(self._roots) for folder in (*inputs.searched, *inputs.compiler_folders))
        self._search = {spelling for path in search if path for spelling in (os.path.normpath(path), _real(path))}
        self._runs_triton = isinstance(toolchain, TritonToolchain)
        self._absent = {os.path.normpath(path) for path in _absent(toolchain)}
        # Each load looks for these on PATH again.
        self._on_path = {*programs.path_folders(), *os.environ.get("COMPILER_PATH", "").split(os.pathsep)}
        self._started = {
            *LINKERS,
            *probe.PROGRAMS,
            *programs.STARTED,
            *(os.path.basename(word) for word in toolchain.argv),
        }
        self._trusted = [self._roots[name] + "/" for name in toolchain.trusted_roots() if name in self._roots]
        variables = [
            answer.question[len(VARIABLE) :] for answer in inputs.answers if answer.question.startswith(VARIABLE)
        ]
        # Those that the plan does not know are no variables of it even if they are set now: SHELL, say.
        self._variables = {*PLAN_ENV, *PASSED_ENV, *toolchain.plan_env, *variables, *dict(build.job.plan.environment)}

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

    def reason(self, kind: str, path: str, program: str) -> str:
        """Returns why something need not be known, as far as that depends on this build; empty if it must be."""
        if self._runs_triton and os.path.basename(program).startswith("python"):
            return self._of_triton(kind, path)
        if kind != "variable" and os.path.basename(program) == "ccache" and _is_below(path, _folders_of_ccache()):
            return "a result that ccache keeps, or its configuration"
        if kind == "listed":
            return "the compiler's own libraries" if path in self._libraries else ""
        if kind == "looked for":
            return self._beside_a_package(path) or self._beside_libraries(path)
        return ""

    def _of_triton(self, kind: str, path: str) -> str:
        """Returns the reason for what the process asks for that runs Triton; empty for kernels and what they import."""
        if kind == "variable":
            return "" if path in triton_worker.OURS else "it is removed before Triton is imported"
        is_pythons = PYTHON.search(path) or (kind == "listed" and path in sys.path) or path.endswith("/openssl.cnf")
        # Kernels may import any other module, which is an input then.
        is_module = MODULE.search(path) is not None
        return "a part of Python or of Triton" if is_pythons and not is_module else ""

    def _beside_a_package(self, path: str) -> str:
        """Returns the reason for a name that a package's header looks for beside itself; empty for others."""
        folder = os.path.dirname(path)
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        is_beside = folder in self._packaged and folder not in self._search and not os.path.exists(path)
        return "a name beside a header of a package" if is_beside else ""

    def _beside_libraries(self, path: str) -> str:
        """Returns the reason for a folder of another kind of libraries; empty for other paths."""
        if LIBRARIES_OF_CLANG.fullmatch(path.removeprefix(self._beside_driver)):
            return "where clang looks for its own libraries"
        for folder in self._library_folders:
            if path == os.path.normpath(f"{folder}/../lib") or MULTILIB.fullmatch(path.removeprefix(folder)):
                return "a folder of another kind of libraries, beside one of LIBRARY_PATH"
        return ""

    def is_listed(self, path: str) -> bool:
        """Returns whether a load notices that something has appeared in a folder."""
        return self._is_own(path) or {path, _real(path)} & {*self._programs, *self._folders} != set()

    def is_variable(self, name: str) -> bool:
        """Returns whether a variable is in a key or in the record."""
        return name in self._variables or is_wrappers(name)  # the plan of a wrapper has all of these


def _folders_above(path: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) != "/":
        yield path


def _folders_of_ccache() -> list[str]:
    """Returns where ccache keeps results, temporary files and settings."""
    named = [os.environ.get(name, "") for name in ("CCACHE_DIR", "CCACHE_TEMPDIR", "CCACHE_CONFIGPATH")]
    own = ("~/.ccache", "~/.cache/ccache", "~/.config/ccache", "/etc/ccache.conf")
    return [*filter(None, named), *map(os.path.expanduser, own)]


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{folder}/") for folder in folders)


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
