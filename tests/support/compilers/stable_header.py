"""A precompiled header of torch's stable ABI, with which g++ compiles a test's source in a third of the time.

This file is the launcher of the compiler: it makes the header for the first unit that it compiles. What a build is
identified by is the same as without it. gcc reads the header's text if a unit has other flags than the first one.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.text_files import write_script

HEADERS = ("library", "tensor", "ops")
LAUNCHER = """\
case "$*" in
  */g++\\ *\\ -DOPFORGE_LOADS_STABLE_BLOCKS\\ *\\ -O0\\ *) ;;
  *) exec "$@" ;;
esac
[ -e {folder}/first.h.gch ] || PYTHONPATH={tests} {python} -m support.compilers.stable_header {folder} "$@" || exit 1
compiler=$1
shift
exec "$compiler" -include {folder}/first.h "$@"
"""


def launcher(folder: Path) -> str:
    """Returns the path of a program that runs a compiler, in whose folder the header is."""
    folder.mkdir(exist_ok=True)
    tests = Path(__file__).parents[2]
    part = folder / f"launcher.{os.getpid()}"
    part.mkdir(exist_ok=True)
    return write_script(part, "launch", LAUNCHER.format(folder=folder, tests=tests, python=sys.executable))


def make(folder: Path, command: Sequence[str]) -> None:
    """Makes the header with the flags of a unit, unless another process has made it."""
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        header = folder / "first.h"
        if (folder / "first.h.gch").exists():
            return
        header.write_text("".join(f"#include <torch/csrc/stable/{name}.h>\n" for name in HEADERS))
        # A macro that the units do not have in common would be a reason not to take the header.
        own = ("-DTORCH_TARGET_VERSION=", "-DOPFORGE_LOADS_STABLE_BLOCKS")
        flags = [word for word in command[: command.index("-MD")] if word[:2] != "-D" or word.startswith(own)]
        subprocess.run([*flags, "-x", "c++-header", str(header), "-o", f"{header}.part"], check=True)
        os.rename(f"{header}.part", f"{header}.gch")


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2:])
