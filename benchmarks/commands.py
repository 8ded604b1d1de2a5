"""The compiler commands of a build, run without opforge; and ops of any number of small units."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.bench.machine import cores

from .scratch import ChildError, write_op

if TYPE_CHECKING:
    from opforge import OpBuilder
    from opforge.builders.declaration.build_plan import Step
    from opforge.cache.store import Store

NAME = "bench_relu"
"""The name of the ops in csrc/. A unit's number is appended to it."""
TIMEOUT = 600
"""Seconds that one command may take."""


class Elapsed(NamedTuple):
    """Seconds that commands took: wall time, and the time of all processors together."""

    wall: float
    cpu: float


def write_unit(template: str, folder: str, number: int, slope: str = "0.5f") -> str:
    """Writes a copy of an op in csrc/ that can be linked together with its other copies. Returns the file's name."""
    path = os.path.join(folder, f"unit{number}.cpp")
    write_op(template, path, slope)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(NAME, f"{NAME}{number}"))
    return os.path.basename(path)


def make_builder(name: str, folder: str, sources: Sequence[str], abi: str) -> OpBuilder:
    """Returns a builder of an op whose sources are in `folder`."""
    from opforge import OpBuilder

    attributes: dict[str, Any] = {"name": name, "folder": folder, "sources": tuple(sources), "abi": abi}
    builder: OpBuilder = type("BenchBuilder", (OpBuilder,), {**attributes, "__module__": __name__})()
    return builder


def empty_store(folder: str) -> Store:
    """Returns a writable store in a new folder."""
    from opforge.cache.current_store import open_store, writable_store

    return writable_store(open_store(folder))


def build_steps(builder: OpBuilder, store: Store, library: str = "library.so") -> list[Step]:
    """Returns the commands that a build of the op would run, with paths relative to the folder that they run in."""
    from opforge.builders.declaration.op_spec import root_paths
    from opforge.builders.planner import make_plan
    from opforge.builders.toolchains import find_toolchain

    spec = builder.spec()
    toolchain = find_toolchain(spec, store)
    return toolchain.steps(make_plan(spec, toolchain), root_paths(spec, toolchain.root_paths()), library)


def run_with_ninja(folder: str, steps: Sequence[Step]) -> Elapsed:
    """Runs commands with ninja alone, as many at once as there are processors.

    Raises:
        ChildError: A command failed.
    """
    from opforge.builders.run import ninja

    ninja.write_build_file(folder, steps)
    return _run(folder, [[ninja.find_ninja(), "-C", folder, "-j", str(cores())]])


def run_in_order(folder: str, steps: Sequence[Step]) -> Elapsed:
    """Runs commands one after another.

    Raises:
        ChildError: A command failed.
    """
    return _run(folder, [step.argv for step in steps])


def _run(folder: str, commands: Sequence[Sequence[str]]) -> Elapsed:
    environment = {**os.environ, "TMPDIR": folder, "LC_ALL": "C"}
    before, began = os.times(), time.perf_counter()
    for command in commands:
        process = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if process.returncode:
            output = process.stdout + process.stderr
            raise ChildError(f"{command[0]} exited with {process.returncode}: {output[-2000:]}")
    wall, after = time.perf_counter() - began, os.times()
    user = after.children_user - before.children_user
    return Elapsed(wall, user + after.children_system - before.children_system)
