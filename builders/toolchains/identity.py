"""Who a compiler is, asked once and remembered under its programs' stamps: a hit must start no process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from opforge.cache.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout, write_file
from opforge.errors import ToolchainError

FORMAT = 4
PROGRAMS = ("cc1plus", "as", "ld")
SWAYED_BY = ("PATH", "CPATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS")
"""The variables that decide which programs and folders a compiler names: under others, it is asked anew."""
_asked: dict[tuple[str, ...], dict[str, Any]] = {}
_unsaved: set[tuple[str, ...]] = set()


def facts(argv: Sequence[str], linker: str, layout: Layout, disk: Disk) -> dict[str, Any]:
    """What the compiler says of itself: `identity` (for the key), `machine`, `search` (header folders), `version`.

    `linker` is the path of one to prefer to the compiler's own, or empty; `linker_flags` are those that make it do so.

    Read from the store while every program's stamp holds; otherwise asked anew. Raises ToolchainError.
    """
    name = (*argv, "", linker, *(os.environ.get(variable, "") for variable in SWAYED_BY))
    file = layout.path("toolchains", key_of([FORMAT, name]) + ".json")
    record = _asked.get(name) or _read(file)
    if not record or _has_changed(record, disk):
        record = _ask(argv, linker, disk)
        _unsaved.add(name)
    _asked[name] = record
    if name in _unsaved:
        try:
            write_file(file, json.dumps(record).encode())
            _unsaved.discard(name)
        except OSError:
            return record  # there is no store before the first build; the next call tries again
    return record


def _has_changed(record: Mapping[str, Any], disk: Disk) -> bool:
    """Whether a program is another, or one has appeared that would be found before it."""
    if any(list(disk.stamp(path) or ()) != stamp for path, stamp in record["stamps"].items()):
        return True
    return any(os.path.exists(path) for path in record["absent"])


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            record = json.load(file)
        texts = isinstance(record["machine"], str) and isinstance(record["version"], str)
        whole = texts and record["format"] == FORMAT and record["stamps"].keys() and record["identity"].keys()
        lists = all(isinstance(record[name], list) for name in ("search", "linker_flags", "absent"))
        return record if whole and lists and all(isinstance(one, str) for one in record["absent"]) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _run(argv: Sequence[str], *options: str) -> str:
    """A compiler's answer to a question about itself, in the C locale."""
    import subprocess  # not on the path of a hit, which asks nothing

    command = [*argv, *options]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(argv[0], f"`{' '.join(command)}` gave no answer ({error})", ADVICE) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ToolchainError(
            argv[0],
            f"`{' '.join(command)}` ended with {done.returncode}: {said[0] if said else 'it said nothing'}",
            ADVICE,
        )
    return done.stdout + (done.stderr if "-v" in options else "")


ADVICE = "Set CXX to a C++ compiler that works, such as g++ or clang++"


def _ask(argv: Sequence[str], linker: str, disk: Disk) -> dict[str, Any]:
    version = _run(argv, "--version")
    machine = _run(argv, "-dumpmachine").strip()
    programs = {os.path.basename(os.path.realpath(argv[0])): os.path.realpath(argv[0])}
    absent = []
    for name in PROGRAMS:
        absent += _earlier(name)
        path = _run(argv, f"-print-prog-name={name}").strip()
        if not os.path.isabs(path):
            import shutil

            path = shutil.which(path) or ""
        if path:
            programs[name] = os.path.realpath(path)
    linker_flags = _linker_flags(argv, linker)
    if linker_flags:
        programs["linker"] = os.path.realpath(linker)
    stamps = {path: list(disk.stamp(path) or ()) for path in programs.values()}
    digests = {name: disk.digest(path) or "" for name, path in programs.items()}
    search = _search(argv)
    identity: Mapping[str, str] = {
        "version": version.splitlines()[0] if version else "",
        "machine": machine,
        "arguments": " ".join(argv[1:]),
        "search": key_of(search),
        **{f"{name} sha256": digest for name, digest in digests.items()},
    }
    return {
        "format": FORMAT,
        "identity": dict(identity),
        "machine": machine,
        "version": version,
        "search": search,
        "linker_flags": linker_flags,
        "tells_archives": _answers(argv, *linker_flags, f"-Wl,--dependency-file={os.devnull}", "-Wl,--version"),
        "stamps": stamps,
        "absent": absent,
    }


def _earlier(name: str) -> list[str]:
    """Where a program of this name would be found before the one that is."""
    found = []
    searched = [os.environ.get("COMPILER_PATH", ""), os.environ.get("PATH", os.defpath)]
    for folder in os.pathsep.join(filter(None, searched)).split(os.pathsep):
        path = os.path.abspath(os.path.join(folder, name))
        if os.path.exists(path):
            break
        found.append(path)
    return found


def _linker_flags(argv: Sequence[str], linker: str) -> list[str]:
    """How to make the compiler use this linker; empty where it cannot (g++ knows mold since 12.1)."""
    if not linker:
        return []
    flag = f"-fuse-ld={os.path.basename(linker).removeprefix('ld.')}"
    return [flag] if _answers(argv, flag, "-Wl,--version") else []


def _answers(argv: Sequence[str], *options: str) -> bool:
    """Whether the compiler and its linker take these options."""
    try:
        _run(argv, *options)
    except ToolchainError:
        return False
    return True


def _search(argv: Sequence[str]) -> list[str]:
    """The folders that the compiler searches for headers by itself, in order, as `-v` lists them."""
    said = _run(argv, "-x", "c++", "-E", "-v", os.devnull)
    folders, inside = [], False
    for line in said.splitlines():
        if line.startswith("#include <...>"):
            inside = True
        elif line.startswith("End of search list"):
            break
        elif inside:
            folders.append(os.path.realpath(line.strip().removesuffix(" (framework directory)")))
    return folders
