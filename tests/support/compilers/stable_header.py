"""Precompiled headers of torch's stable ABI, with which g++ compiles a test's source in a third of the time.

This file is the launcher of the compiler: for each set of flags it makes the header when it is first needed. What a
build is identified by is the same as without it.
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
flags=
for word in "$@"; do
  case $word in
    -MD) break ;;
    -ffile-prefix-map=*) ;;
    -std=*|-DTORCH_TARGET_VERSION=*|-[OfmgW]*) flags="$flags$word" ;;
  esac
done
header="{folder}/$flags/first.h"
[ -e "$header.gch" ] || PYTHONPATH={tests} {python} -m support.compilers.stable_header "$header" "$@" || exit 1
compiler=$1
shift
exec "$compiler" -include "$header" "$@"
"""


def launcher(folder: Path) -> str:
    """Returns the path of a program that runs a compiler, in whose folder the headers are."""
    folder.mkdir(exist_ok=True)
    tests = Path(__file__).parents[2]
    part = folder / f"launcher.{os.getpid()}"
    part.mkdir(exist_ok=True)
    return write_script(part, "launch", LAUNCHER.format(folder=folder, tests=tests, python=sys.executable))


def make(header: Path, command: Sequence[str]) -> None:
    """Makes a header with the flags of a unit, unless another process has made it."""
    header.parent.mkdir(exist_ok=True)
    with open(header.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if header.with_name("first.h.gch").exists():
            return
        header.write_text("".join(f"#include <torch/csrc/stable/{name}.h>\n" for name in HEADERS))
        # A macro that the units do not have in common would be a reason not to take the header.
        own = ("-DTORCH_TARGET_VERSION=", "-DOPFORGE_LOADS_STABLE_BLOCKS")
        flags = [word for word in command[: command.index("-MD")] if word[:2] != "-D" or word.startswith(own)]
        subprocess.run([*flags, "-x", "c++-header", str(header), "-o", f"{header}.part"], check=True)
        os.rename(f"{header}.part", f"{header}.gch")


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2:])
