"""Who a compiler is, asked once and cached_info under its programs' stamps: a hit must start no process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opforge.cache.filesystem.disk import Disk
from opforge.cache.filesystem.files import UNREADABLE, read_json, write_file
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.cache.records.stat_record import RACY_NS
from opforge.errors import ToolchainError

FORMAT = 6
PROGRAMS = ("cc1plus", "as", "ld")
PROBE_ENV = ("PATH", "CPATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS")
"""The variables that decide which programs and folders a compiler names: under others, it is asked anew."""
ADVICE = "Set CXX to a C++ compiler that works, such as g++ or clang++"
PROBE_TIMEOUT = 60.0
"""Seconds that a compiler has for a question about itself."""
CompilerInfo = dict[str, Any]
"""What a compiler reports about itself, JSON-able.

`identity` (named facts for the key), `stamps` (path -> stamp of each of its programs), `absent` (paths at which another
program would be found first), and more entries for each kind of compiler.
"""
_infos: dict[tuple[str, ...], CompilerInfo] = {}
_unsaved: set[tuple[str, ...]] = set()
HOST_SHAPE = {"machine": str, "version": str, "search": list, "linker_flags": list}
"""What is told of a C++ compiler besides `identity`, `stamps` and `absent`, and of which type."""


def host_info(
    argv: Sequence[str], linker: str, layout: Layout, disk: Disk, path_flags: Sequence[str] = ()
) -> CompilerInfo:
    """What the compiler says of itself: `identity` (for the key), `machine`, `search` (header folders), `version`.

    `linker` is the path of one to prefer to the compiler's own, or empty; `linker_flags` are those that make it do so.
    `path_flags` are the flags that name other programs, such as -B. Raises ToolchainError.
    """
    name = (*argv, "", *path_flags, "", linker, *(os.environ.get(variable, "") for variable in PROBE_ENV))
    return cached_info(name, HOST_SHAPE, layout, disk, lambda: _probe_host(argv, linker, disk, path_flags))


def reset() -> None:
    """Drops what this process has read or probed, as if it had just started."""
    _infos.clear()
    _unsaved.clear()


def cached_info(
    name: tuple[str, ...], shape: Mapping[str, type], layout: Layout, disk: Disk, ask: Callable[[], CompilerInfo]
) -> CompilerInfo:
    """A compiler's record, which `ask` makes; `name` holds all that its answer depends on besides the programs.

    Read from the store while the stamp of every program holds and nothing in `absent` has appeared; otherwise asked
    anew. A record has `identity`, `stamps`, `absent`, and what `shape` lists by type.
    """
    file = layout.path("toolchains", key_of([FORMAT, name]) + ".json")
    record = _infos.get(name) or _read(file, shape)
    if not record or _has_changed(record, disk):
        record = {"format": FORMAT, **ask()}
        young = disk.now_ns() - RACY_NS
        if any(time > young for stamp in record["stamps"].values() for time in stamp[1:3]):
            return record  # a program could change again and keep its stamp: ask again next time
        _unsaved.add(name)
    _infos[name] = record
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


def _read(path: str, shape: Mapping[str, type]) -> CompilerInfo | None:
    try:
        record = read_json(path)
        whole = record["format"] == FORMAT and record["stamps"].keys() and record["identity"].keys()
        shaped = all(isinstance(record[name], kind) for name, kind in shape.items())
        return record if whole and shaped and all(isinstance(one, str) for one in record["absent"]) else None
    except UNREADABLE:
        return None


def run(argv: Sequence[str], *options: str, advice: str = ADVICE) -> str:
    """A compiler's answer to a question about itself, in the C locale. Raises ToolchainError."""
    status, out, err = try_run(argv, *options, advice=advice)
    if status:
        said = (err or out).strip().splitlines() or ["it said nothing"]
        told = next((line for line in said if "error" in line), said[0])
        raise ToolchainError(argv[0], f"`{' '.join([*argv, *options])}` ended with {status}: {told}", advice)
    return out + (err if "-v" in options else "")


def try_run(
    argv: Sequence[str], *options: str, advice: str = ADVICE, variables: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit status, output and errors of a question whose "no" is an answer too. Raises ToolchainError if none comes."""
    import subprocess  # not on the path of a hit, which asks nothing

    command = [*argv, *options]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C", **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROBE_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError):
            _raise_scarce(argv, error)
        raise ToolchainError(argv[0], f"`{' '.join(command)}` gave no answer ({error})", advice) from error
    if done.returncode:
        _raise_scarce(argv, done.stderr)  # no answer, above all not one to be cached_info
    return done.returncode, done.stdout, done.stderr


def _raise_scarce(argv: Sequence[str], said: OSError | str) -> None:
    """Raise BuildResourceError where it is the machine's fault, not the compiler's, that an answer failed to come."""
    from opforge.builders.resources import exhausted_resource

    scarce = exhausted_resource(argv[0], said)
    if scarce:
        raise scarce


def _probe_host(argv: Sequence[str], linker: str, disk: Disk, path_flags: Sequence[str]) -> CompilerInfo:
    import shutil  # not on the path of a hit, which asks nothing

    version = run(argv, "--version")
    machine = _last_line(run(argv, "-dumpmachine"))
    programs = {os.path.basename(os.path.realpath(argv[0])): os.path.realpath(argv[0])}
    absent = []
    for word in argv[1:]:  # "ccache g++", "env wrapper": what is run is another than what is called
        path = None if word.startswith("-") else shutil.which(word)
        if path:
            absent += [] if os.path.dirname(word) else _earlier(word)
            programs[word] = os.path.realpath(path)
    for name in PROGRAMS:
        absent += _earlier(name)
        path = _last_line(run(argv, *path_flags, f"-print-prog-name={name}"))
        if not os.path.isabs(path):
            path = shutil.which(path) or ""
        if path:
            programs[name] = os.path.realpath(path)
    linker_flags = _linker_flags(argv, linker)
    if linker_flags:
        programs["linker"] = os.path.realpath(linker)
    stamps = {path: list(disk.stamp(path) or ()) for path in programs.values()}
    digests = {name: disk.digest(path) or "" for name, path in programs.items()}
    folders = header_folders([*argv, *path_flags])
    identity: Mapping[str, str] = {
        "version": version.splitlines()[0] if version else "",
        "machine": machine,
        "arguments": " ".join(argv[1:]),
        "search": key_of(folders),
        **{f"{name} sha256": digest for name, digest in digests.items()},
    }
    return {
        "identity": dict(identity),
        "machine": machine,
        "version": version,
        "search": folders,
        "linker_flags": linker_flags,
        "tells_archives": _answers(argv, *linker_flags, f"-Wl,--dependency-file={os.devnull}", "-Wl,--version"),
        "stamps": stamps,
        "absent": absent,
    }


def _last_line(said: str) -> str:
    """The answer itself: a wrapper may say something of its own before the compiler speaks."""
    return said.strip().rpartition("\n")[2]


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
        return try_run(argv, *options)[0] == 0
    except ToolchainError:
        return False


def header_folders(argv: Sequence[str]) -> list[str]:
    """The folders that the compiler searches for headers by itself, in order, as `-v` lists them."""
    said = run(argv, "-x", "c++", "-E", "-v", os.devnull)
    folders, inside = [], False
    for line in said.splitlines():
        if line.startswith("#include <...>"):
            inside = True
        elif line.startswith("End of search list"):
            break
        elif inside:
            folders.append(os.path.realpath(line.strip().removesuffix(" (framework directory)")))
    return folders
