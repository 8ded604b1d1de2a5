"""What a command reads and looks for, as the kernel sees it: by strace, which sees static programs too."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

CALLS = "open,openat,execve,stat,lstat,newfstatat,statx,access,faccessat,faccessat2,readlink,readlinkat"
CALL = re.compile(r"(\w+)\((?:(AT_FDCWD|\d+)(?:<([^>]*)>)?, )?\"((?:[^\"\\]|\\.)+)\"(.*) = (-?\d+)(.*)$")
WRITES = re.compile("O_WRONLY|O_TRUNC|O_PATH")


def argv(log: str, *command: str) -> list[str]:
    """Returns a command that runs another one and writes its system calls for files to `log`."""
    return ["strace", "-f", "-qq", "-y", "-s", "4096", "-e", f"trace={CALLS}", "-o", log, *command]


def is_allowed(folder: Path) -> bool:
    """Returns whether processes may be traced here."""
    try:
        return subprocess.run(argv(str(folder / "allowed"), "true"), capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def read(log: Path, folder: str) -> tuple[set[str], set[str]]:
    """Returns the files that were opened to be read, and the names that were absent.

    `folder` is the one in which the command ran.
    """
    opened, absent, begun = set[str](), set[str](), dict[str, str]()
    for line in log.read_text(errors="surrogateescape").splitlines():
        process, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[process] = call.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
            call = begun.pop(process, "") + resumed[1]
        match = CALL.match(call)
        if match is None:
            continue
        path = os.path.normpath(os.path.join(match[3] or folder, match[4]))
        if int(match[6]) >= 0 and match[1].startswith("open") and not WRITES.search(match[5]):
            opened.add(path)
        elif "ENOENT" in match[7] or "ENOTDIR" in match[7]:
            absent.add(path)
    return opened, absent
