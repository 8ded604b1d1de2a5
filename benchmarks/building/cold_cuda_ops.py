"""How long do the CUDA ops take to build for three generations of GPUs, from nothing, on a machine without a GPU?"""

from __future__ import annotations

import json
import statistics
import time

from benchmarks.commands import build_steps, empty_store, run_with_ninja
from benchmarks.scratch import ChildError, Scratch
from opforge.accelerator.target import Target
from opforge.bench.harness import Report
from opforge.builders.base import OpBuilder
from opforge.builders.cuda import BUILDERS
from opforge.builders.toolchains import find_toolchain
from opforge.builders.triton import TRITON_BUILDERS
from opforge.errors import ToolchainNotFoundError

ROUNDS = 3
OPS = [name for name in BUILDERS if name not in TRITON_BUILDERS]
TARGET = "cuda:sm_80+sm_90+sm_100+ptx"
ALL = "all of them"
ONE_SECONDS, ALL_SECONDS = 8, 60


def run(scratch: Scratch) -> Report:
    """Runs whole processes, each with an empty cache, in turns with the bare commands of each op."""
    report = Report(
        f"`build-ops --json OP --target {TARGET}` from start to end, with an empty cache",
        "ninja: the compiler commands of that op's build, with nothing before or after them",
    )
    if problem := _toolchain_problem(scratch):
        report.left_out.append(problem)
        return report
    walls: dict[str, list[float]] = {name: [] for name in (*OPS, ALL)}
    bare: dict[str, list[float]] = {name: [] for name in OPS}
    for _ in range(ROUNDS):
        for name in OPS:
            walls[name].append(_build(scratch, [name]))
            steps = build_steps(_builder(name), empty_store(scratch.new_folder("plan")))
            bare[name].append(run_with_ninja(scratch.new_folder("bare"), steps).wall)
        walls[ALL].append(_build(scratch, OPS))
    table = report.table("From nothing", "s")
    for name, seconds in walls.items():
        table.add(f"{name}, build-ops", seconds)
        if name in bare:
            table.add(f"{name}, ninja", bare[name], "ceiling")
    for name in OPS:
        report.figure(name, statistics.median(walls[name]), "s", ONE_SECONDS)
    report.figure(ALL, statistics.median(walls[ALL]), "s", ALL_SECONDS)
    return report


def _builder(name: str) -> OpBuilder:
    from opforge.accelerator.registry import make_accelerator

    kind = make_accelerator("cuda", "the benchmark").get_op_builder(name)
    builder = kind(target=Target.parse(TARGET)) if kind else None
    if not isinstance(builder, OpBuilder):
        raise TypeError(f"{name}: the accelerator cuda has no such op")
    return builder


def _toolchain_problem(scratch: Scratch) -> str | None:
    """Returns why nothing can be built on this machine. None if it can."""
    try:
        find_toolchain(_builder(OPS[0]).spec(), empty_store(scratch.new_folder("plan")))
    except ToolchainNotFoundError as error:
        return str(error)
    return None


def _build(scratch: Scratch, names: list[str]) -> float:
    """Returns the wall time of `build-ops` with an empty cache, in seconds."""
    cache = scratch.new_folder("cuda")
    began = time.perf_counter()
    command = [scratch.script("build-ops"), "--json", *names, "--target", TARGET]
    output = scratch.output(command, OPFORGE_CACHE_DIR=cache)
    seconds = time.perf_counter() - began
    for op in json.loads(output)["ops"]:
        if op["state"] != "built":
            raise ChildError(f"build-ops: {op['name']} was {op['state']}, with an empty cache: {op['reason']}")
    return seconds
