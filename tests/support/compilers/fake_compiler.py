"""Fake compilers that reply to the probe's commands and compile nothing; the toolchain of one on PATH."""

from __future__ import annotations

import os
from typing import Any

from support.fake_disk import LaterDisk
from support.text_files import write_script

from opforge.builders.planner import make_plan
from opforge.builders.toolchains import host
from opforge.cache.current_store import prepare
from opforge.cache.layout import Layout

COMPILER_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_RUN_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
COMPILER_VARIABLES += ("CCC_OVERRIDE_OPTIONS", "C_INCLUDE_PATH", "LPATH", "GCC_ROOT", "G++_ROOT", "BINUTILS_ROOT")
COMPILER_VARIABLES += ("GNUTARGET", "LDEMULATION", "CXX_MODULE_MAPPER")
"""The variables that compilers read, written out: a test notices if one is missing in the toolchain's own list."""
RECORDING_SCRIPT = """\
echo "$@" >> "$(dirname "$0")/runs"
case "$*" in
  *--version*) echo "g++ (Fake) 12.2";;
  *-dumpmachine*) echo {machine};;
  *-print-prog-name=*) n="${{*##*=}}"; p="$COMPILER_PATH/$n"
        if [ -x "$p" ]; then echo "$p"; else echo "$n"; fi;;
  *-v*) printf '#include <...> search starts here:\\n' >&2
        [ -n "$CPATH" ] && printf ' %s\\n' "$CPATH" >&2
        printf ' {include}\\nEnd of search list.\\n' >&2;;
esac
"""
"""Replies to the probe's commands, compiles nothing, and appends its arguments to the file `runs` beside it."""
SCRIPT = """\
case "$*" in
  *--version*) echo "g++ (Fake) @VERSION@";;
  *-dumpmachine*) echo $(uname -m)-linux-gnu;;
  *-print-prog-name=*) n="${*##*=}"; p="$COMPILER_PATH/$n"; if [ -x "$p" ]; then echo "$p"; else echo "$n"; fi;;
  *-v*) printf '#include <...> search starts here:\\n /usr/include\\nEnd of search list.\\n' >&2;;
esac
"""


def create(folder: Any, name: str = "g++", version: str = "12.2") -> str:
    """Creates a compiler that replies to the probe's commands and compiles nothing; returns its path."""
    os.makedirs(folder, exist_ok=True)
    return write_script(folder, name, SCRIPT.replace("@VERSION@", version))


def toolchain(tmp_path, store="store"):
    """Returns the toolchain of the compiler on PATH, with a store of its own."""
    root = str(tmp_path / store)
    prepare(root, frozenset({0, os.geteuid()}))
    return host.HostToolchain(Layout(root), LaterDisk())


def run_count(bin):
    """Returns how often a compiler with RECORDING_SCRIPT was run in this folder."""
    path = bin / "runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def plan_of(builder, tmp_path):
    return make_plan(builder.spec(), toolchain(tmp_path))
