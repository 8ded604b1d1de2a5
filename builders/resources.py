"""What a machine can run out of while ops are built: disk, memory, processes, open files."""

from __future__ import annotations

import errno
import re

from opforge.errors import BuildResourceError

OUT_OF_MEMORY = (
    "Killed signal terminated program|unable to execute command: Killed|internal compiler error: Killed|^Killed$|"
    "virtual memory exhausted|cc1plus: out of memory|Cannot allocate memory|unable to allocate OS memory"
)
"""What g++, clang++, mold and the shell print if memory is short, or if the kernel has killed a process for it."""
RESOURCES: tuple[tuple[tuple[int, ...], str, str, str], ...] = (
    (
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        "No space left on device|Disk quota exceeded|File too large",
        "the disk is full",
        "Free some space, or set OPFORGE_CACHE_DIR to another disk.",
    ),
    (
        (errno.ENOMEM,),
        OUT_OF_MEMORY,
        "a compiler was killed, or memory ran out",
        "Lower the number of compilers with OPFORGE_JOBS=1.",
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
            return BuildResourceError.of(op, problem, advice, log)
    return None
