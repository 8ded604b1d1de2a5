"""The compiler commands of a build, without opforge around them; and ops of as many small units as are asked for."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.builders.planner import make_plan
from opforge.builders.spec.op_spec import root_paths
from opforge.builders.toolchains import find_toolchain

from .machine import cores
from .scratch import ChildError, write_op

if TYPE_CHECKING:
    from opforge import OpBuilder
    from opforge.builders.spec.build_plan import Step
    from opforge.cache.store import Store

NAME = "bench_relu"
"""What the ops in csrc/ are called; a unit's own number is put behind it."""
TIMEOUT = 600
"""Seconds that one run of commands may take."""


class Spent(NamedTuple):
    """Seconds that commands took: on the clock, and of all processors together."""

    wall: float
    cpu: float


def write_unit(template: str, folder: str, number: int, slope: str = "0.5f") -> str:
    """Write a copy of a small op in csrc/ that can be linked beside its other copies; gives the file's name."""
    path = os.path.join(folder, f"unit{number}.cpp")
    write_op(template, path, slope)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(NAME, f"{NAME}{number}"))
    return os.path.basename(path)


def builder_of(name: str, folder: str, sources: Sequence[str], abi: str) -> OpBuilder:
    """A builder of an op whose sources lie in `folder`."""
    from opforge import OpBuilder

    attributes: dict[str, Any] = {"name": name, "folder": folder, "sources": tuple(sources), "abi": abi}
    made: OpBuilder = type("BenchBuilder", (OpBuilder,), {**attributes, "__module__": __name__})()
    return made


def empty_store(folder: str) -> Store:
    """A store in a new folder, ready to be built in."""
    from opforge.cache.current import open_store, writable_store

    return writable_store(open_store(folder))


def steps_of(builder: OpBuilder, store: Store, library: str = "library.so") -> list[Step]:
    """The commands that a build of the op would run, with paths relative to the folder that they run in."""
    toolchain = find_toolchain(builder.spec(), store)
    return toolchain.steps(
        make_plan(builder.spec(), toolchain), root_paths(builder.spec(), toolchain.places()), library
    )


def under_ninja(folder: str, steps: Sequence[Step]) -> Spent:
    """Run commands under ninja alone, as many at once as there are processors. Raises ChildError."""
    from opforge.builders.run import ninja

    ninja.write_build_file(folder, steps)
    return _spend(folder, [[ninja.find_ninja(), "-C", folder, "-j", str(cores())]])


def one_by_one(folder: str, steps: Sequence[Step]) -> Spent:
    """Run commands one after another. Raises ChildError."""
    return _spend(folder, [step.argv for step in steps])


def _spend(folder: str, commands: Sequence[Sequence[str]]) -> Spent:
    environment = {**os.environ, "TMPDIR": folder, "LC_ALL": "C"}
    before, began = os.times(), time.perf_counter()
    for command in commands:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if done.returncode:
            raise ChildError(f"{command[0]} gave {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    wall, after = time.perf_counter() - began, os.times()
    user = after.children_user - before.children_user
    return Spent(wall, user + after.children_system - before.children_system)
