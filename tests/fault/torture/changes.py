"""Changes a file in the middle of a load, many times; the loads after it must give what a build without a cache gives.

    python tests/fault/torture/changes.py --cases 2000 [--seed 7]

A moment of a load is a call of the file system that its process makes: the change happens just before it. Each case has
a load that is answered by the machine's memory, by a layer, by the store or by a build, one change, and one moment.
Then the same process and a new one load the op again. The exit status is 1 on any violation.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from support import sample_ops, text_files

from opforge.builders.declaration import description as description
from opforge.builders.declaration.kernel_roots import KernelRoot
from opforge.builders.lookup import finder as finder  # imported before any load, as what a process imports is no moment
from opforge.builders.run import planned_build as planned_build
from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.errors import BuildError
from opforge.foundation.remembered_values import ABSENT

READING = ("access", "flock", "fstat", "listdir", "lstat", "open", "read", "readlink", "scandir", "stat")
CALLS = {*READING, "fork_exec", "link", "mkdir", "posix_spawn", "rename", "replace", "unlink", "write"}
SOURCE = f"""\
#include "value.h"
#include "quoted.h"
#include "../above.h"
#include <part.h>
#include <sub/sub.h>
#if __has_include(<later.h>)
#define LATER "yes"
#else
#define LATER "no"
#endif
#if __has_include(<asked.h>)
#define ASKED "yes"
#else
#define ASKED "no"
#endif
#ifdef __clang__
#define COMPILER "clang"
#else
#define COMPILER "gcc"
#endif
{sample_ops.EXPORT} const char* value() {{
  return "source=@ value=" VALUE " quoted=" QUOTED " above=" ABOVE " part=" PART " sub=" SUB " later=" LATER
         " asked=" ASKED " compiler=" COMPILER;
}}
"""
COMPILER = "a compiler's link"
KERNEL = f'{sample_ops.EXPORT} const char* kernel() {{ return "@"; }}\n'
FILES = {
    "op/op.cpp": SOURCE.replace("@", "1"),
    "op/value.h": '#define VALUE "1"\n',
    "above.h": '#define ABOVE "1"\n',
    "op/late/part.h": '#define PART "1"\n',
    "op/late/quoted.h": '#define QUOTED "1"\n',
    "op/late/sub/sub.h": '#define SUB "1"\n',
    "op/late/asked.h": "",
    "op/early/none.h": "",
    "op/moved/sub.h": '#define SUB "2"\n',
    "a/none.h": "",
    "b/part.h": '#define PART "3"\n',
    "second/kernel.cpp": KERNEL.replace("@", "1"),
    "second/include/part.h": '#define PART "5"\n',
}


class Tree:
    """The op's files, its store, its layer and the machine's memory, all below one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.builds = os.path.join(os.path.dirname(folder), "builds")
        self.changes: dict[str, Callable[[], None]] = {
            "a header of the op": lambda: self.write("op/value.h", '#define VALUE "2"\n'),
            "a source": lambda: self.write("op/op.cpp", SOURCE.replace("@", "2")),
            "a header above the op's folder": lambda: self.write("above.h", '#define ABOVE "2"\n'),
            "a header that appears in an earlier folder": lambda: self.write("op/early/part.h", '#define PART "2"\n'),
            "a header that appears beside the source": lambda: self.write("op/quoted.h", '#define QUOTED "2"\n'),
            "a folder of headers that is moved": lambda: os.rename(self.path("op/moved"), self.path("op/early/sub")),
            "a header that is asked for appears": lambda: self.write("op/late/later.h", ""),
            "a header that is asked for goes": lambda: os.unlink(self.path("op/late/asked.h")),
            "a header that is read goes": lambda: os.unlink(self.path("op/late/part.h")),
            "a linked folder": lambda: self.link("link", "b"),
            "a source in an earlier root": lambda: self.write("first/kernel.cpp", KERNEL.replace("@", "2")),
            "a source in the last root": lambda: self.write("second/kernel.cpp", KERNEL.replace("@", "3")),
            "a root that gets headers": lambda: self.write("first/include/part.h", '#define PART "4"\n'),
        }
        if clang := shutil.which("clang++"):
            self.changes[COMPILER] = lambda: self.link("cxx", clang)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self, name: str, text: str) -> None:
        """Writes a file, at once for every reader."""
        new = text_files.write(self.folder, f"{name}.new", text)
        os.rename(new, self.path(name))

    def link(self, name: str, target: str) -> None:
        os.symlink(os.path.join(self.folder, target), self.path(f"{name}.new"))
        os.rename(self.path(f"{name}.new"), self.path(name))

    def reset(self, kind: str) -> None:
        """Writes all files anew, with an entry for them where this kind of load will find it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, text in FILES.items():
            text_files.write(self.folder, name, text)
        self.link("link", "a")
        self.link("cxx", shutil.which("g++") or "g++")
        os.environ.update(
            CXX=self.path("cxx"), OPFORGE_CACHE_DIR=self.path("store"), XDG_CACHE_HOME=self.path("memory")
        )
        os.environ["OPFORGE_CACHE_LAYERS"] = self.path("layer") if "layer" in kind else ""
        if "a build" in kind:
            return
        if not os.path.exists(self.builds):
            in_child(lambda: value(self.op()))
            shutil.copytree(self.path("store"), self.builds, symlinks=True)
        place = "layer" if "layer" in kind else "store"
        shutil.rmtree(self.path(place), ignore_errors=True)
        shutil.copytree(self.builds, self.path(place), symlinks=True)
        if "memory" in kind:
            in_child(lambda: value(self.op()))
        else:
            shutil.rmtree(self.path("memory"), ignore_errors=True)

    def op(self) -> Any:
        """Returns a builder of the op, as a new process would have it."""
        return sample_ops.builder_class(
            self.path("op"),
            "op",
            abi="c",
            sources=["op.cpp", "kernel.cpp"],
            include_dirs=["early", self.path("link"), "late"],
            kernel_roots=[KernelRoot(name, self.path(name)) for name in ("first", "second")],
        )()


HOUR = 3600 * 10**9
SLOW = "a build, beside a clock that is an hour behind"
KINDS = ("a memory of the store", "a memory of a layer", "a layer", "the store", "a build", SLOW)


def value(builder: Any) -> str:
    """Loads an op; returns what its functions return."""
    op = builder.load()
    for function in (op.value, op.kernel):
        function.restype = ctypes.c_char_p
    return f"{op.value().decode()} kernel={op.kernel().decode()}"


def move_to_a_slow_server(tree: Tree) -> None:
    """Has this process see the op's files on another file system, whose clock is an hour behind the store's."""
    stamp, changed_at, device = Disk.stamp, Disk.changed_at, Disk.device
    places = tuple(tree.path(name) for name in ("store", "memory", "layer"))

    def is_moved(path: str) -> bool:
        return path.startswith(tree.folder) and not path.startswith(places)

    def moved_stamp(disk: Disk, path: str) -> Stamp | None:
        seen = stamp(disk, path)
        if seen and is_moved(path):
            return seen._replace(mtime_ns=seen.mtime_ns - HOUR, ctime_ns=seen.ctime_ns - HOUR)
        return seen

    def moved_stamps(disk: Disk, paths: Iterable[str]) -> list[int]:
        return [number for path in paths for number in moved_stamp(disk, path) or ABSENT]

    Disk.stamp, Disk.flat_stamps = moved_stamp, moved_stamps  # type: ignore[method-assign]
    Disk.changed_at = lambda disk, path: changed_at(disk, path) - HOUR * is_moved(path)  # type: ignore[method-assign]
    Disk.device = lambda disk, path: device(disk, path) + is_moved(path)  # type: ignore[method-assign]


def changed_at(tree: Tree, change: str, moment: int, is_slow: bool = False) -> tuple[int, str]:
    """Loads the op with a change at a moment, then again; returns how many moments there were, and the last value.

    The first load may fail: a compiler that is replaced by another is given the flags of the first.
    """
    count, pid = 0, os.getpid()
    if is_slow:
        move_to_a_slow_server(tree)

    def count_call(_frame: FrameType, event: str, function: Any) -> None:
        nonlocal count
        if event == "c_call" and function.__name__ in CALLS and os.getpid() == pid:
            count += 1
            if count == moment:
                sys.setprofile(None)
                tree.changes[change]()

    sys.setprofile(count_call)
    try:
        during = value(tree.op())
    except BuildError as error:
        during = str(error)
    finally:
        sys.setprofile(None)
    return count, value(tree.op()) if count >= moment else during


def in_child(call: Callable[[], Any]) -> Any:
    """Returns what a call returns in a new process, or a text that begins with `failed`."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            outcome = call()
        except BaseException as error:
            outcome = f"failed: {type(error).__name__}: {error}"
        with os.fdopen(writing, "w") as file:
            json.dump(outcome, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        outcome = json.load(file)
    os.waitpid(child, 0)
    return outcome


def violation(tree: Tree, kind: str, change: str, moment: int, expected: str) -> str | None:
    """Returns what is wrong in one case; empty if nothing is, None if the load had fewer moments."""
    tree.reset(kind)
    outcome = in_child(lambda: changed_at(tree, change, moment, kind == SLOW))
    if isinstance(outcome, str):
        return f"the load {outcome}"
    moments, again = outcome
    if moments < moment:
        return None
    anew = in_child(lambda: value(tree.op()))
    if again != expected:
        return f"the same process has {again}\n  instead of {expected}"
    return f"a new process has {anew}\n  instead of {expected}" if anew != expected else ""


def run(folder: str, cases: int, chooser: random.Random) -> int:
    """Runs random cases; returns how many were violated."""
    tree, expected, violated, counts = Tree(os.path.join(folder, "tree")), dict[str, str](), 0, Counter[str]()
    for change in tree.changes:
        tree.reset("a build")
        tree.changes[change]()
        expected[change] = in_child(lambda: value(tree.op()))
    most = {}
    for kind in KINDS:
        tree.reset(kind)
        most[kind], _value = in_child(lambda: changed_at(tree, "", 1 << 62))
    while counts.total() < cases:
        kind, change = chooser.choice(KINDS), chooser.choice(list(expected))
        moment = chooser.randint(1, most[kind])
        if change == COMPILER and "layer" in kind:
            continue  # a layer's entry is used whatever compiler is here
        problem = violation(tree, kind, change, moment, expected[change])
        if problem is None:
            continue
        counts[kind] += 1
        if problem:
            violated += 1
            print(f"{kind}, {change}, moment {moment} of {most[kind]}: {problem}", flush=True)
    print(f"{counts.total()} cases ({', '.join(f'{kind}: {counts[kind]}' for kind in KINDS)}), {violated} violations")
    return violated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    # The stamps of files that were written a moment ago are remembered, as if they were older.
    now = Disk.now_ns
    Disk.now_ns = lambda disk: now(disk) + 10**10  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(run(folder, options.cases, random.Random(options.seed)) > 0)


if __name__ == "__main__":
    main()
