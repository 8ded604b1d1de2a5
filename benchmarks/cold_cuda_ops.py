"""How long do the CUDA ops take to build for three generations of GPUs, from nothing, on a machine without one?"""

from __future__ import annotations

import json
import statistics
import time

from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.builders.cuda import BUILDERS
from opforge.builders.triton import TRITON_BUILDERS
from opforge.errors import ToolchainNotFoundError

from .commands import empty_store, steps_of, under_ninja
from .harness import Report
from .scratch import ChildError, Scratch

ROUNDS = 3
OPS = [name for name in BUILDERS if name not in TRITON_BUILDERS]
TARGET = "cuda:sm_80+sm_90+sm_100+ptx"
ALL = "all of them"
ONE_S, ALL_S = 8, 60


def run(scratch: Scratch) -> Report:
    """Whole processes, each with an empty cache, by turns with the bare commands of each op."""
    report = Report(
        f"`build-ops --json OP --target {TARGET}` from start to end, with an empty cache",
        "ninja: the compiler commands of that op's build, with nothing before or after them",
    )
    if problem := _no_compiler(scratch):
        report.left_out.append(problem)
        return report
    walls: dict[str, list[float]] = {name: [] for name in (*OPS, ALL)}
    bare: dict[str, list[float]] = {name: [] for name in OPS}
    for _ in range(ROUNDS):
        for name in OPS:
            walls[name].append(_build(scratch, [name]))
            steps = steps_of(_builder(name), empty_store(scratch.fresh("plan")))
            bare[name].append(under_ninja(scratch.fresh("bare"), steps).wall)
        walls[ALL].append(_build(scratch, OPS))
    table = report.table("From nothing", "s")
    for name, spent in walls.items():
        table.add(f"{name}, build-ops", spent)
        if name in bare:
            table.add(f"{name}, ninja", bare[name], "ceiling")
    for name in OPS:
        report.figure(name, statistics.median(walls[name]), "s", ONE_S)
    report.figure(ALL, statistics.median(walls[ALL]), "s", ALL_S)
    return report


def _builder(name: str) -> OpBuilder:
    from opforge.accelerator.registry import make_accelerator

    kind = make_accelerator("cuda", "the benchmark").get_op_builder(name)
    made = kind(target=Target.parse(TARGET)) if kind else None
    if not isinstance(made, OpBuilder):
        raise TypeError(f"{name} is no op of the CUDA accelerator")
    return made


def _no_compiler(scratch: Scratch) -> str | None:
    """Why nothing can be built here, or None."""
    try:
        _builder(OPS[0]).toolchain(empty_store(scratch.fresh("plan")))
    except ToolchainNotFoundError as error:
        return str(error)
    return None


def _build(scratch: Scratch, names: list[str]) -> float:
    cache = scratch.fresh("cuda")
    began = time.perf_counter()
    command = [scratch.script("build-ops"), "--json", *names, "--target", TARGET]
    printed = scratch.output(command, OPFORGE_CACHE_DIR=cache)
    spent = time.perf_counter() - began
    for one in json.loads(printed)["ops"]:
        if one["state"] != "built":
            raise ChildError(f"build-ops: {one['name']} was {one['state']}, with an empty cache: {one['reason']}")
    return spent
