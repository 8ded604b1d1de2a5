"""Probes compilers: a compiler's identity is determined once, and remembered with the stamps of its programs."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.cache.ownership import has_tag
from opforge.errors import ToolchainError
from opforge.foundation import exit_status, formats, remembered_values, remembered_values_writer
from opforge.foundation.environment import COMPILER_VARIABLES
from opforge.foundation.files import renew
from opforge.foundation.remembered_values import ABSENT, FlatStamps

from . import configuration, programs, search

PROGRAMS = ("cc1plus", "as", "ld")
STARTED_FOR = {"-gsplit-dwarf": "objcopy"}
"""Beginnings of flags that make the compiler start a further program."""
LINKER_FLAGS = ("-fuse-ld=", "--ld-path=")
"""Prefixes of the flags that name a linker: by its path, or without the `ld.` of the program that is looked for."""
ADVICE = "Set CXX to a C++ compiler that works, such as g++ or clang++"
RENEW_SECONDS = 24 * 3600.0
"""How long after a noted use of a record the next one is noted: those that are not used for long are removed."""
TEMPORARY_FILE = re.compile(r"temporary file|/tmpxft_")
"""In an error of gcc or clang, or of nvcc, whose files have such names: none could be made."""
MACHINE = re.compile(r"[\w.]+(-[\w.]+)+")
"""What gcc and clang print for -dumpmachine."""
PROBE_TIMEOUT = 60.0
"""Seconds after which a compiler that is probed is stopped."""
NOTHING = ("-x", "assembler", "-c", os.devnull, "-o", os.devnull)
"""Options that assemble an empty source."""
CompilerInfo = dict[str, Any]
"""The report of a compiler about itself, JSON-able.

Every kind of compiler has `identity` (name -> text, for the plan key), `stamps` (path of a program -> its stamp) and
`absent` (paths at which another program would be found first). `cached_info` adds `folders`: the stamps of the folders
in which such a program would appear, or in which a link to the compiler lies.
"""
VARYING = re.compile(r"(/[^\s\"=,]+)?/(cc\w{6}|null-\w+)\.\w+|-f[\w-]+-compilation-dir=[^\s\"]*")
"""In the output of -###: the names of temporary files, and the working folder."""
HOST_SHAPE = {
    "machine": str,
    "version": str,
    "linker": str,
    "search": list,
    "first": list,
    "libraries": list,
    "specs": list,
}
"""The further entries of a C++ compiler's info, with their types."""
_infos: dict[str, tuple[CompilerInfo, FlatStamps]] = {}
"""Results that this process has read or probed, by the name under which they are remembered, with their stamps.
"""
_unsaved: set[str] = set()

CHATTER = re.compile(
    r"\s|Using built-in specs|Reading specs from|(?:COLLECT|OFFLOAD|COMPILER|LIBRARY)_\w+=|Target:|Configured with:|"
    r"Thread model:|Supported LTO|gcc version|[\w .-]*clang version|InstalledDir:|Found candidate|Selected |Candidate |"
    r"Build config:|ignoring |#include |End of search list|GNU C|GGC heuristics|Compiler executable checksum|"
    r"Configuration file:|System configuration file"
)
"""The beginnings of what gcc and clang print for -v, whether they fail or not."""


def reset() -> None:
    """Forgets everything that this process has read or probed, as if it had just started."""
    _infos.clear()
    _unsaved.clear()


def host_info(argv: Sequence[str], layout: Layout, disk: Disk, path_flags: Sequence[str] = ()) -> CompilerInfo:
    """Returns the info of a C++ compiler: HOST_SHAPE, `tells_archives` and `lists_assembled`.

    `machine` is a triple, `search` lists the folders of headers, `first` those of them that may come before an op's
    own, `libraries` the folders of libraries, and `specs` the files of specs that gcc reads. `linker` is the linker's
    path, and `tells_archives` is true if it lists the archives that it reads. `lists_assembled` is true if the
    assembler lists the files that it reads.

    Args:
        argv: The compiler and the arguments that always go with it.
        layout: The store that keeps the info.
        disk: The disk.
        path_flags: The flags that select other programs or folders, such as -B and -fuse-ld=.

    Raises:
        ToolchainError: The compiler does not work.
        BuildResourceError: The machine ran out of memory, processes or files.
    """
    linkers = _linkers([*argv, *path_flags])
    further = _further_programs([*argv, *path_flags])
    started = [programs.started_by_compiler(name) for name in (*PROGRAMS, *further, *linkers)]
    words = [programs.which(word) or word for word in argv]
    values = [os.environ.get(variable, "") for variable in COMPILER_VARIABLES]
    name = (*words, "", *path_flags, "", *linkers, "", *started, *values, *programs.state(argv), *programs.behind(argv))
    return cached_info(name, HOST_SHAPE, layout, disk, lambda: _probe_host(argv, disk, path_flags))


def cached_info(
    name: tuple[str, ...], shape: Mapping[str, type], layout: Layout, disk: Disk, probe: Callable[[], CompilerInfo]
) -> CompilerInfo:
    """Returns a compiler's info, from the store if it still holds, otherwise from `probe`.

    It holds while the stamp of every program is the same, no path in `absent` exists, and every absolute path in `name`
    leads to the same file.

    Args:
        name: Everything besides the programs' contents that the info depends on. A program is named by the path at
            which it was found: the links on the way to it count.
        shape: The entries that the info must have besides those of every compiler, with their types.
        layout: The store that keeps the info.
        disk: The disk.
        probe: Runs the compiler.
    """
    reached, folder = programs.reached(name), layout.path("toolchains")
    known = remembered_values.name_of((formats.TOOLCHAIN, name, reached))
    info, stamps = _infos.get(known) or _recalled(known, folder, shape, disk)
    if not info or disk.flat_stamps(stamps.paths) != [*stamps.numbers]:
        at = disk.now_ns()
        info = probe()
        stamps = watched(info)
        if stamps.is_racy(at) or reached != programs.reached(name):
            return _with_folders(info, name, disk)  # it could change again and keep its stamp: probe again next time
        _unsaved.add(known)
    _infos[known] = info, stamps
    # There is no store before the first build: the next call tries again.
    if (
        known in _unsaved
        and has_tag(layout.root)
        and remembered_values_writer.remember(known, stamps, info, disk.now_ns(), folder=folder)
    ):
        _unsaved.discard(known)
    return _with_folders(info, name, disk)


def _with_folders(info: CompilerInfo, name: Sequence[str], disk: Disk) -> CompilerInfo:
    folders = programs.link_folders(name) | {os.path.dirname(path) for path in info["absent"]}
    return {**info, "folders": {path: list(disk.stamp(path) or ABSENT) for path in sorted(folders)}}


def watched(info: CompilerInfo) -> FlatStamps:
    """Returns the stamps that a compiler's info follows from: its programs, and places where another comes first."""
    programs_used = ((path, tuple(stamp) or ABSENT) for path, stamp in info["stamps"].items())
    return FlatStamps.of([*programs_used, *((path, ABSENT) for path in info["absent"])])


def _recalled(known: str, folder: str, shape: Mapping[str, type], disk: Disk) -> tuple[CompilerInfo | None, FlatStamps]:
    """Returns the info that is remembered in a folder of a store, and its stamps; None if there is none."""
    found = remembered_values.recall(known, disk.flat_stamps, folder)
    if found is None or not all(isinstance(found[0].get(name), kind) for name, kind in shape.items()):
        return None, FlatStamps()
    renew(f"{folder}/{known}.json", RENEW_SECONDS)
    return found


def run(argv: Sequence[str], *options: str, advice: str = ADVICE) -> str:
    """Runs a compiler with options that make it report about itself, in the C locale, and returns the output.

    With -v the output includes stderr. `advice` ends the error's message.

    Raises:
        ToolchainError: It cannot be started, fails, or takes longer than PROBE_TIMEOUT.
        BuildResourceError: The machine ran out of memory, processes or files.
    """
    status, out, err = try_run(argv, *options, advice=advice)
    if status:
        reason = _reason(err or out)
        problem = f"`{' '.join([*argv, *options])}` ended with {status}: {reason}"
        if named := next((word for word in argv if word.startswith(LINKER_FLAGS) and word in reason), ""):
            advice = f"Install the linker that {named} names, or remove that flag"
        elif TEMPORARY_FILE.search(reason):
            advice = "Set TMPDIR to a folder that you can write"
        elif variable := _variable_in(reason):
            advice = f"Correct {variable}, in which it is, or unset it"
        if libraries := os.environ.get("LD_LIBRARY_PATH"):
            problem += f" (LD_LIBRARY_PATH={libraries} is set: programs take libraries from there before their own)"
        raise ToolchainError(argv[0], problem, advice)
    return out + (err if "-v" in options else "")


def _variable_in(reason: str) -> str:
    """Returns the variable that names a path which a compiler's error begins with; empty if none does."""
    path = reason.partition("error: ")[2].rpartition(": ")[0]
    paths = {name: os.environ.get(name, "").split(os.pathsep) for name in COMPILER_VARIABLES}
    return next((name for name, value in paths.items() if path and path in value), "")


def _reason(printed: str) -> str:
    """Returns the line that says why a compiler failed: an error, or the last one that is not what -v prints."""
    lines = [line for line in printed.splitlines() if line.strip()]
    error = next((line for line in lines if re.search(r"\berror:", line)), "")
    last = next((line for line in reversed(lines) if not CHATTER.match(line)), "")
    return (error or last or (lines[-1] if lines else "it printed nothing")).rstrip(".")


def try_run(
    argv: Sequence[str], *options: str, advice: str = ADVICE, variables: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Runs a compiler as `run` does, and returns its exit status, output and errors.

    `variables` are set for this run.

    Raises:
        ToolchainError: It cannot be started, or takes longer than PROBE_TIMEOUT.
        BuildResourceError: The machine ran out of memory, processes or files.
    """
    from opforge.builders.resources import raise_if_exhausted

    command = [*argv, *options]
    try:
        with _temporary_files(options) as folder:
            process = exit_status.run(
                command,
                PROBE_TIMEOUT,
                env={**os.environ, "LC_ALL": "C", **folder, **(variables or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError):
            raise_if_exhausted(argv[0], error)
            if error.filename == os.devnull:
                advice = f"{os.devnull} is missing: give this system, or its container, a /dev with `null` in it"
        raise ToolchainError(argv[0], f"`{' '.join(command)}` failed ({error})", advice) from error
    if process.returncode:
        raise_if_exhausted(argv[0], process.stderr)  # otherwise the failure would be stored as the compiler's own
    return process.returncode, process.stdout, process.stderr


@contextmanager
def _temporary_files(options: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """Sets where a compiler of HIP keeps temporary files to a folder that is removed afterwards.

    clang makes a folder for each of the device's architectures, and leaves it behind. Other compilers keep the user's
    folder: a server that a wrapper such as sccache starts would go on using one that is gone. Where no folder can be
    made, the compiler says what is missing.
    """
    with ExitStack() as stack:
        variables = {}
        with suppress(OSError):
            if "hip" in options:
                made = tempfile.TemporaryDirectory(prefix="opforge-probe-", ignore_cleanup_errors=True)
                variables["TMPDIR"] = stack.enter_context(made)
        yield variables


def stated_version(argv: Sequence[str], pattern: str, printed: str, expected: str, advice: str) -> re.Match[str]:
    """Returns the match of the version in what a compiler has printed for --version.

    Raises ToolchainError if there is none. `expected` says what was expected, `advice` ends the error's message.
    """
    version = re.search(pattern, printed)
    if version is None:
        name, first = os.path.basename(argv[0]), printed.strip().partition("\n")[0]
        raise ToolchainError(argv[0], f"`{name} --version` prints {first!r}, not {expected}", advice)
    return version


def _probe_host(argv: Sequence[str], disk: Disk, path_flags: Sequence[str]) -> CompilerInfo:
    version = run(argv, "--version")
    machine = _last_line(run(argv, "-dumpmachine"))
    if not MACHINE.fullmatch(machine):  # such as /bin/true, and anything else that accepts every option
        problem = f"`{' '.join(argv)} -dumpmachine` prints {machine!r}, not a machine such as x86_64-linux-gnu"
        raise ToolchainError(argv[0], problem, ADVICE)
    linkers = _linkers([*argv, *path_flags])
    started_programs = (*PROGRAMS, *_further_programs([*argv, *path_flags]), *linkers)
    files = _program_files(argv, path_flags, started_programs)
    linker = files.get(os.path.basename(linkers[-1])) if linkers else files.get("ld")
    report = run([*argv, *path_flags], "-isystem", search.MARK, "-x", "c++", "-E", "-v", os.devnull)
    folders = search.header_folders(report)
    distribution, listed, without = configuration.surroundings(report)
    files |= {f"flags {number}": path for number, path in enumerate(configuration.files(report))}
    files |= {os.path.basename(path): path for path in distribution}
    commands = _commands(argv, path_flags) if programs.starts_others(argv) else []
    libraries = search.library_folders(try_run([*argv, *path_flags], "-print-search-dirs")[1])
    libraries = [*dict.fromkeys([*search.linked_folders(commands), *libraries])]
    specs = configuration.specs_of_lto([*argv, *path_flags, *commands], libraries)
    read = [*configuration.specs(report), *filter(os.path.isfile, specs)]
    specs += configuration.asked_for(read, [*argv, *path_flags], libraries)
    files |= {f"specs {number}": path for number, path in enumerate(filter(os.path.isfile, specs))}
    files = {name: os.path.realpath(path) for name, path in files.items()}
    missing = configuration.missing_files(argv, machine, path_flags, folders, started_programs)
    missing += [*search.missing_folders(report), *without, *(path for path in specs if not os.path.exists(path))]
    flags = [flag for flag in path_flags if flag.startswith(LINKER_FLAGS)]  # in the order in which the linker gets them
    watched = (*files.values(), *map(os.path.realpath, programs.behind(argv)), *listed)
    identity = {
        "version": version.splitlines()[0] if version else "",
        "machine": machine,
        "arguments": " ".join(argv[1:]),
        "search": key_of(folders),
        **({"commands": key_of(commands)} if programs.starts_others(argv) else {}),
        **({"language": "C"} if programs.is_for_c(argv) else {}),
        **{f"{name} sha256": disk.digest(path) or "" for name, path in files.items()},
    }
    return {
        "identity": identity,
        "machine": machine,
        "version": version,
        "search": folders,
        "first": search.first_folders(report),
        "linker": linker or "",
        "tells_archives": _accepts(argv, *flags, f"-Wl,--dependency-file={os.devnull}", "-Wl,--version"),
        "lists_assembled": _accepts(argv, f"-Wa,--MD,{os.devnull}", *NOTHING),
        "libraries": libraries,
        "specs": read,
        "stamps": {path: list(disk.stamp(path) or ()) for path in watched},
        "absent": [path for path in missing if path not in files.values()],
    }


def _program_files(argv: Sequence[str], path_flags: Sequence[str], started: Sequence[str]) -> dict[str, str]:
    """Returns the paths of a compiler's programs by name: its own, those behind a wrapper, and those that it starts."""
    files = {os.path.basename(os.path.realpath(argv[0])): argv[0]}
    for word in argv[1:]:  # of "ccache g++" or "env wrapper": programs that argv[0] starts
        path = None if word.startswith("-") else programs.which(word)
        if path:
            files[word] = path
    for name in started:
        path = _last_line(run(argv, *path_flags, f"-print-prog-name={name}"))
        path = path if os.path.isabs(path) else programs.started_by_compiler(path)
        if path:
            files[os.path.basename(name)] = path
    return files


def _commands(argv: Sequence[str], path_flags: Sequence[str]) -> list[str]:
    """Returns the commands that a wrapper starts, a line each: its own variables and files are in them."""
    outputs = [
        try_run([*argv, *path_flags], "-###", *options, "-x", "c++", os.devnull, "-o", os.devnull)
        for options in (("-c",), ("-shared",))
    ]
    lines = [line for _status, out, err in outputs for line in (out + err).split("\n")]
    return [VARYING.sub("", line) for line in lines if line.startswith(" ")]


def _last_line(output: str) -> str:
    """Returns the last line: a wrapper may print lines of its own before the compiler does."""
    return output.strip().rpartition("\n")[2]


def _linkers(words: Iterable[str]) -> list[str]:
    """Returns the linkers that flags name, the one that counts last: by their paths, or as what is looked for."""
    names = []
    for word in words:
        flag, _, name = word.partition("=")
        if word.startswith(LINKER_FLAGS) and name:
            names.append(name if os.path.isabs(name) or flag == "--ld-path" else f"ld.{name}")
    return names


def _further_programs(words: Sequence[str]) -> list[str]:
    """Returns the programs that flags make the compiler start besides PROGRAMS."""
    return [name for flag, name in STARTED_FOR.items() if any(word.startswith(flag) for word in words)]


def _accepts(argv: Sequence[str], *options: str) -> bool:
    """Returns whether the compiler and its linker accept these options."""
    try:
        return try_run(argv, *options)[0] == 0
    except ToolchainError:
        return False
