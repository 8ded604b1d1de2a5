"""Failures of a build that sources do not cause: no disk, memory, processes or open files left, or a signal."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterator

from opforge.errors import BuildResourceError, CacheDirError
from opforge.foundation import settings

OUT_OF_MEMORY = (
    "Killed signal terminated program|unable to execute command: Killed|internal compiler error: Killed|^Killed$|"
    "virtual memory exhausted|cc1plus: out of memory|Cannot allocate memory|unable to allocate OS memory"
)
"""Messages of g++, clang++, mold and the shell if memory is short, or if the kernel has killed a process for it."""
FEWER_COMPILERS = "Lower the number of compilers with OPFORGE_JOBS=1."
RESOURCES: tuple[tuple[tuple[int, ...], str, str, str], ...] = (
    (
        (errno.EDQUOT,),
        "Disk quota exceeded",
        "the disk is full: your quota on it is used up",
        "Free some space, or set OPFORGE_CACHE_DIR to another disk.",
    ),
    (
        (errno.ENOSPC,),
        r"No space left on device|mold: failed to write to an output file\. Disk full\?",
        "the disk is full",
        "Free some space, or set OPFORGE_CACHE_DIR to another disk.",
    ),
    (
        (errno.EFBIG,),
        "File too large|File size limit exceeded",
        "a file is larger than the disk or a limit allows",
        "Raise the limit (`ulimit -f`), or set OPFORGE_CACHE_DIR to another disk.",
    ),
    (
        (errno.ENOMEM,),
        OUT_OF_MEMORY,
        "a compiler was killed, or memory ran out",
        FEWER_COMPILERS,
    ),
    (
        (errno.EAGAIN,),
        "Resource temporarily unavailable|Cannot fork",
        "no more processes can be started",
        "End some, set OPFORGE_JOBS=1, or raise the limit (`ulimit -u`, or the container's on pids).",
    ),
    (
        (errno.EMFILE, errno.ENFILE),
        "Too many open files",
        "no more files can be opened",
        "Close some, or raise the limit (`ulimit -n`).",
    ),
    (
        (errno.E2BIG,),
        "Argument list too long",
        "a command is longer than the system accepts",
        "Write the flags to a file, and pass its name after an @ instead of them.",
    ),
)
"""For each resource: error numbers, a pattern of the system's and the compilers' messages, the problem, what to do."""
FEW_INODES = 16
"""A disk with fewer free inodes counts as one that has none: the compilers have removed their temporary files since."""
SIGNALS = {signal.strsignal(number) or "": number for number in signal.valid_signals()}
"""The signals by the names that the shell and gcc print."""
SIGNAL_NAME = rf"(?P<name>{'|'.join(map(re.escape, filter(None, SIGNALS)))})"
ENDED_BY_SIGNAL = (
    rf"^\S+: (?:fatal|internal compiler) error: {SIGNAL_NAME} signal terminated program (?P<program>\S+)",
    rf"internal compiler error: {SIGNAL_NAME}$",
    rf"error: unable to execute command: {SIGNAL_NAME}(?: \(core dumped\))?$",
    rf"fatal error: (?P<program>\S+) terminated with signal \d+ \[{SIGNAL_NAME}",
    r"error\s*: '(?P<program>\w+)' died due to signal (?P<number>\d+)",
    rf"^{SIGNAL_NAME}(?: \(core dumped\))?$",
    r"^FAILED: \[code=(?P<status>1[2-9]\d)\]",
)
"""Messages of g++, clang++, the linker's driver, nvcc, the shell and ninja about a process that a signal has ended."""
SMALLEST_STACK = 1 << 20
"""Bytes. With a smaller stack compilers, and ninja, may crash; the usual limit is 8 MiB."""
CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
"""Signals that a program gets for what it does itself."""


def exhausted_resource(op: str, cause: OSError | str, log: str = "") -> BuildResourceError | None:
    """Returns the error for a resource that ran out, or None if none did.

    Args:
        op: The op that is built, or the program that was started.
        cause: The error that opforge got from the system, or the output of a build.
        log: Where the whole output is kept; empty if it is not.
    """
    for numbers, pattern, problem, advice in RESOURCES:
        if isinstance(cause, OSError):
            exhausted = cause.errno in numbers
        else:  # A line of the source that a compiler quotes ("    3 | ...") does not count.
            exhausted = re.search(rf"^(?!\s*\d+ \|).*(?:{pattern})", cause, re.MULTILINE) is not None
        if exhausted:
            if advice == FEWER_COMPILERS:
                advice = memory_advice()
            elif settings.jobs() == 1:
                advice = advice.replace("set OPFORGE_JOBS=1, ", "")
            return BuildResourceError.of(op, problem, advice, log)
    return None


def memory_advice() -> str:
    """Returns the advice if memory ran out: fewer compilers, unless one runs alone already."""
    if settings.jobs() != 1:
        return FEWER_COMPILERS
    return "One compiler ran alone (OPFORGE_JOBS=1): give it more memory, or divide the source it compiles."


def raise_if_exhausted(op: str, cause: OSError | str) -> None:
    """Raises BuildResourceError if `cause`, as in `exhausted_resource`, is a resource that ran out."""
    if error := exhausted_resource(op, cause):
        raise error from (cause if isinstance(cause, OSError) else None)


def raise_for(op: str, root: str, error: OSError) -> None:
    """Raises the error of opforge's that one of the system stands for in the store `root`; none for another file."""
    raise_if_exhausted(op, error)
    if error.filename is not None and os.fsdecode(error.filename).startswith(root):
        advice = "Give yourself access to all of it, or set OPFORGE_CACHE_DIR to another folder"
        raise CacheDirError(root, f"{error.filename}: {error.strerror}", advice) from error
    if error.filename is None and error.errno != errno.ENOENT:  # that would be a working folder that was removed
        # reading and writing of files that are open already: those in staging
        advice = "Check its disk, or set OPFORGE_CACHE_DIR to another folder"
        raise CacheDirError(root, f"a build in it failed ({error})", advice) from error


def out_of_memory(op: str) -> BuildResourceError:
    """Returns the error for a process that got no more memory: the machine's, a container's or `ulimit -v`."""
    return BuildResourceError.of(op, "memory ran out", "End other processes, or raise the limit (`ulimit -v`).", "")


def no_inodes(op: str, folder: str, log: str = "") -> BuildResourceError | None:
    """Returns the error for a folder on a disk that has no inode left, so that no file can be created; else None."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    if not status.f_files or status.f_favail > FEW_INODES:  # some file systems have no table of inodes
        return None
    problem = "the disk is full: it has no inodes left, so no file can be created"
    return BuildResourceError.of(op, problem, "Delete some files there, or set OPFORGE_CACHE_DIR to another disk.", log)


def ended_by_signal(op: str, step: str, output: str, log: str = "") -> BuildResourceError | None:
    """Returns the error for a compiler that a signal has ended, or None if none was.

    Args:
        op: The op that is built.
        step: The title of the step that failed.
        output: The output of the build.
        log: Where the whole output is kept; empty if it is not.
    """
    for match in _endings(output):
        number = _signal_of(match)
        if number not in signal.valid_signals():
            continue
        program = match.groupdict().get("program") or "the compiler"
        problem = f"{program} was ended by signal {number} ({signal.strsignal(number)}) in the step {step!r}"
        return BuildResourceError.of(op, problem, _signal_advice(number), log)
    return None


def is_out_of_memory(output: str) -> bool:
    """Returns whether a compiler in the output of a build got no memory, or was killed as the kernel kills for it."""
    if re.search(rf"^(?!\s*\d+ \|).*(?:{OUT_OF_MEMORY})", output, re.MULTILINE):
        return True
    return any(_signal_of(match) == signal.SIGKILL for match in _endings(output))


def small_stack() -> str:
    """Returns the advice about a limit on the stack with which compilers crash; empty for any other limit."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    if not 0 <= limit < SMALLEST_STACK:
        return ""
    return f"The stack is limited to {limit >> 10} KiB: raise the limit (`ulimit -s 8192`)."


def _endings(output: str) -> Iterator[re.Match[str]]:
    """Yields the match of each pattern for a program that a signal has ended."""
    for pattern in ENDED_BY_SIGNAL:
        if match := re.search(pattern, output, re.MULTILINE):
            yield match


def _signal_of(match: re.Match[str]) -> int:
    parts = match.groupdict()
    return SIGNALS.get(parts.get("name") or "") or int(parts.get("number") or int(parts.get("status") or 0) - 128)


def _signal_advice(number: int) -> str:
    name = next((member.name for member in signal.Signals if member == number), "")  # real-time signals have none
    if name in CRASHES:
        return small_stack() or "It crashed: try another version of it with CXX, or report this to its developers."
    if name == "SIGKILL":
        return f"Memory may have run out. {memory_advice()}"
    if name == "SIGXCPU":
        return "Raise the limit on processor time (`ulimit -t`)."
    return "Something outside opforge has ended it: run the build again."
