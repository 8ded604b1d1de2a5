"""Which programs a toolchain runs: what PATH finds, where the links on the way lead, and what is only a wrapper."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from opforge.cache.filesystem.disk import Disk
from opforge.errors import ToolchainNotFoundError
from opforge.foundation import settings
from opforge.foundation.environment import CHOICE_VARIABLES, of_wrappers

COMPILER = re.compile(r"([\w.]+-)*(g\+\+|gcc|c\+\+|cc|clang\+\+|clang|icpx|icx|nvcc|zig)(-[\d.]+)?")
"""The real names of compilers that obey no other variables than those that opforge knows."""
C_COMPILER = re.compile(r"((?:.*[-/])?)(gcc|cc|clang)(-[\d.]+)?")
"""A C compiler's name, as in /usr/bin/x86_64-linux-gnu-gcc-12: what comes before, its own, its version."""
ELF = b"\x7fELF"
STARTED = ("g++", "gcc", "c++", "cc", "clang++", "clang")
"""Programs that a wrapper looks for on PATH."""


def path_folders() -> list[str]:
    """Returns the folders on PATH; none if it is empty. POSIX would search the working folder then, which nobody named.

    Folders that are missing, and relative ones, are returned too.
    """
    value = os.environ.get("PATH", os.defpath)
    return value.split(os.pathsep) if value else []


def which(name: str, folders: Sequence[str] | None = None) -> str | None:
    """Returns the absolute path of a program in these folders, by default those on PATH; None if there is none.

    It is called for every plan: shutil.which does the same and takes several times as long.
    """
    if os.path.dirname(name):
        folders = [""]
    elif folders is None:
        folders = path_folders()
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return os.path.abspath(path)
    return None


def below_home(kind: str, homes: Mapping[str, str]) -> str | None:
    """Returns the path of a program below the folder that the first of the variables names; None if none is set.

    `homes` has each variable with the program's path below its folder. Raises ToolchainNotFoundError, which calls the
    program a `kind`, if that folder does not have it.
    """
    variable = next(filter(os.environ.get, homes), None)
    if variable is None:
        return None
    path = which(os.path.join(os.environ[variable], homes[variable]))
    if path is None:
        searched = [f"{variable}={os.environ[variable]}, which has no {homes[variable]}"]
        raise ToolchainNotFoundError(kind, searched, f"Correct {variable}, or unset it.", searched[0])
    return path


def started_by_compiler(name: str) -> str:
    """Returns the path of a program that a compiler finds by COMPILER_PATH or PATH; empty if there is none."""
    own = os.environ.get("COMPILER_PATH", "")
    return which(name, [*(own.split(os.pathsep) if own else []), *path_folders()]) or ""


def reached(words: Iterable[str]) -> list[str]:
    """Returns where the absolute paths among the words lead: a link that is switched leads elsewhere."""
    return [os.path.realpath(word) for word in dict.fromkeys(words) if word.startswith("/")]


def link_folders(words: Iterable[str]) -> set[str]:
    """Returns the folders whose stamps change if a link is switched on the way from one of the absolute paths."""
    disk = Disk()
    return {os.path.dirname(path) for word in words if word.startswith("/") for path in disk.links_from(word)}


def is_wrapper(argv: Sequence[str]) -> bool:
    """Returns whether the last program of this command is not known to be a compiler: a script, or of another name.

    It may start any program on PATH. Of `ccache g++` the second word is checked.
    """
    return not _is_compiler(_programs(argv)[-1])


def _programs(argv: Sequence[str]) -> list[str]:
    return [argv[0], *filter(None, (which(word) for word in argv[1:] if not word.startswith("-")))]


def is_for_c(argv: Sequence[str]) -> bool:
    """Returns whether this command's compiler is started by the name of a C compiler: it links no C++ library.

    clang and clang++ are one program, which looks at its name.
    """
    return bool(C_COMPILER.fullmatch(_programs(argv)[-1]))


def _is_compiler(path: str) -> bool:
    path = os.path.realpath(path)
    if not COMPILER.fullmatch(os.path.basename(path)):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(ELF)) == ELF
    except OSError:
        return False


def starts_others(argv: Sequence[str]) -> bool:
    """Returns whether this command may start another compiler than its last program: a wrapper, or `ccache g++`.

    ccache does so only if a variable names another one.
    """
    return is_wrapper(argv) or bool(_variables(argv))


def behind(argv: Sequence[str]) -> list[str]:
    """Returns the compilers that a wrapper may start, on PATH or named by a variable; none if this is no wrapper.

    `ccache` with the name of a compiler starts the next program of that name, and `mpicxx` the first g++.
    """
    if not starts_others(argv):
        return []
    names = dict.fromkeys((os.path.basename(argv[0]), *STARTED))
    paths = [which(name, [folder]) for folder in path_folders() for name in names]
    paths += [which(os.environ[name].partition(" ")[0]) for name in _variables(argv)]
    return [path for path in dict.fromkeys(paths) if path and path != argv[0]]


def own_variables(argv: Sequence[str]) -> list[str]:
    """Returns the names of the variables that this command may read besides those that every compiler reads."""
    return [*settings.compiler_env(), *_variables(argv)]


def _variables(argv: Sequence[str]) -> list[str]:
    """Returns the names of the variables of wrappers that are set and that this command may read."""
    found = of_wrappers()
    if not found or is_wrapper(argv):
        return found
    choices = [name for name in found if name.startswith(CHOICE_VARIABLES)]
    return [] if not choices or all(map(_is_compiler, _programs(argv))) else choices


def state(argv: Sequence[str]) -> list[str]:
    """Returns the values of `own_variables`, and of PATH for a wrapper: what it looks up there is not known."""
    names = [*own_variables(argv), *(["PATH"] if starts_others(argv) else [])]
    return [f"{name}={os.environ.get(name, '')}" for name in names]
