"""The files of flags that compilers read by themselves: GCC's specs and clang's configuration files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from opforge.builders.declaration.flag_paths import split

SPECS = re.compile(r"^Reading specs from (.+)$", re.MULTILINE)
READ = re.compile(r"^(?:Reading specs from|Configuration file:) (.+)$", re.MULTILINE)
"""How compilers name such a file if they run with -v."""
ASKED = re.compile(
    r"%:(?:if-exists(?:-then)?(?:-else)?|find-file|include)\(([^)]*)\)|%include(?:_noerr)?\s*<([^>\n]+)>|([^\s%{}:;|&()]+)%s"
)
"""How GCC's specs ask for a file: whether it is there, where it is, or to read it."""
PART = re.compile(r"[^\s%{}:;|&()*]+")
"""Pattern of a file's name among the arguments of a function of specs."""
GCC = re.compile(r"^Found candidate GCC installation: (.+)$", re.MULTILINE)
DISTRIBUTION = (
    *("/etc/os-release", "/usr/lib/os-release", "/etc/lsb-release", "/etc/redhat-release", "/etc/debian_version"),
    *("/etc/SuSE-release", "/etc/alpine-release", "/etc/gentoo-release"),
)
"""The files by which clang recognizes a distribution."""
LINK_TIME = ("lto-wrapper", "liblto_plugin.so")
"""Files that gcc looks for in each link, whether or not it optimizes."""
CLANG_FOLDERS = ("/etc/clang", "~/.config/clang")
"""Where distributions let clang look for configuration files, besides its own folder."""


def surroundings(report: str) -> tuple[list[str], list[str], list[str]]:
    """Returns the further inputs of clang: files, folders whose names it lists, and paths that do not exist.

    Flags depend on the distribution, and the folders of C++'s headers on which versions of gcc are installed.
    """
    if "clang version" not in report:
        return [], [], []
    paths = [path for path in DISTRIBUTION if os.path.isfile(path)]
    parents = [os.path.dirname(os.path.realpath(path)) for path in GCC.findall(report)]
    return paths, list(dict.fromkeys(parents)), [path for path in DISTRIBUTION if path not in paths]


def files(report: str) -> list[str]:
    """Returns the files of flags that a compiler read, from what it prints with -v, and those that they name."""
    paths: list[str] = []
    for name in READ.findall(report):
        path = os.path.abspath(name)
        if os.path.isfile(path):
            paths += [path, *_included(path, {path})]
    return list(dict.fromkeys(paths))


def specs(report: str) -> list[str]:
    """Returns the files of specs that gcc read, from what it prints with -v."""
    return list(dict.fromkeys(filter(os.path.isfile, map(os.path.abspath, SPECS.findall(report)))))


def _included(path: str, seen: set[str]) -> list[str]:
    """Returns the files that a clang configuration file names as @FILE, relative to its own folder."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        names = re.findall(r"^\s*(@.+)$", file.read(), re.MULTILINE)
    paths: list[str] = []
    for word in (word for line in names for word in split(line)):
        inner = os.path.normpath(os.path.join(os.path.dirname(path), word.removeprefix("@")))
        if word.startswith("@") and os.path.isfile(inner) and inner not in seen:
            paths += [inner, *_included(inner, seen | {inner})]
    return paths


def asked_for(specs: Iterable[str], words: Iterable[str], library_folders: Sequence[str]) -> list[str]:
    """Returns the paths at which gcc looks for the files that its specs ask for.

    Args:
        specs: The files of specs.
        words: The command, which may name the sysroot.
        library_folders: The folders in which gcc looks for a file whose name is no absolute path.
    """
    sysroot = [word.partition("=")[2] for word in words if word.startswith("--sysroot=")]
    paths: list[str] = []
    files = [*dict.fromkeys(specs)]
    for file in files:  # which grows: what `%:include` reads, which a link alone does, may ask too
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            text = opened.read().replace("%R", sysroot[-1] if sysroot else "")
        for match in ASKED.finditer(text):
            is_read = match[0].startswith("%:include(")
            arguments, included, searched = match.groups(default="")
            names = PART.findall(arguments) if arguments else [included or searched]
            asked = [os.path.normpath(os.path.join(place, name)) for name in names if name for place in library_folders]
            files += [path for path in asked if path not in files and is_read and os.path.isfile(path)]
            paths += asked
    return [*dict.fromkeys(map(os.path.normpath, paths))]


def specs_of_lto(words: Iterable[str], library_folders: Iterable[str]) -> list[str]:
    """Returns the paths at which gcc would read specs when it compiles again in a link.

    The linker's plugin starts gcc with LIBRARY_PATH, which collect2 has set to all folders of libraries: in these gcc
    looks for specs. Empty if nothing in the words asks for link-time optimization.
    """
    if not any(re.search(r"(^|[\s\"'])-flto", word) for word in words):
        return []
    return [os.path.join(folder, "specs") for folder in library_folders]


def _below_prefix(prefix: str, machine: str, version: str, programs: Iterable[str]) -> list[str]:
    """Returns the paths at which gcc looks for its own files with -BPREFIX, which may be the beginning of a name too.

    Of a folder that is not there, only the folder itself is returned: nothing can appear in it before.
    """
    names = ("specs", "include", "include-fixed", *LINK_TIME, *programs)
    paths = [prefix]
    for base in dict.fromkeys((prefix, f"{prefix.rstrip('/')}/")):
        paths += [base + name for name in (*names, machine)]
        for folder in filter(os.path.isdir, (base + machine, f"{base}{machine}/{version}")):
            paths += [f"{folder}/{name}" for name in (*names, version)]
    return paths


def missing_files(
    argv: Sequence[str], machine: str, path_flags: Sequence[str], folders: Iterable[str], programs: Iterable[str]
) -> list[str]:
    """Returns the paths at which a file of flags, or what a folder of -B may hold, would be used if it appeared.

    Args:
        argv: The compiler and the arguments that always go with it.
        machine: The triple that it builds for.
        path_flags: The flags that select other programs or folders.
        folders: The folders of headers that it searches.
        programs: The names of the programs that it starts.
    """
    driver = os.path.realpath(argv[0])
    prefixes = [
        flag if before == "-B" else flag[2:]
        for before, flag in pairwise(("", *path_flags))
        if flag.startswith("-B") or before == "-B"
    ]
    prefixes = [prefix for prefix in prefixes if os.path.isabs(prefix)]
    libraries = [folder for folder in os.environ.get("LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    # GCC's own folder holds its headers: .../lib/gcc/MACHINE/VERSION/include
    own = [os.path.dirname(folder) for folder in folders if re.search(r"/gcc/[^/]+/[^/]+/include$", folder)]
    paths = [os.path.join(folder, "specs") for folder in (*prefixes, *libraries, *own)]
    moved = os.environ.get("GCC_EXEC_PREFIX", "")
    paths += [f"{moved}specs"] if os.path.isabs(moved) else []
    version = next((folder.rsplit("/", 1)[1] for folder in own), "")
    paths += [path for prefix in prefixes for path in _below_prefix(prefix, machine, version, programs)]
    if "clang" in os.path.basename(driver):
        name = os.path.basename(argv[0])
        stems = {name, name.rpartition("-")[0], "clang", "clang++", machine, f"{machine}-clang++", f"{machine}-clang"}
        named = [flag.partition("=")[2] for flag in path_flags if re.match(r"--config-\w+-dir=", flag)]
        searched = (os.path.dirname(driver), *map(os.path.expanduser, CLANG_FOLDERS), *named)
        paths += [os.path.join(folder, f"{stem}.cfg") for folder in searched for stem in sorted(stems) if stem]
        # It takes a linker beside itself, or beside the link by which it is started.
        paths += [os.path.join(os.path.dirname(argv[0]), name) for name in programs if name.startswith("ld")]
    return [path for path in dict.fromkeys(map(os.path.normpath, paths)) if not os.path.exists(path)]
