"""Loads the CPU optimizers' ops, builds those that are not cached, and measures a warm load."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opforge import OpBuilder, get_accelerator

BUILDERS = ("CPUAdamBuilder", "CPUAdagradBuilder", "CPULionBuilder")
PROCESSES = 5
WARM_LOAD = """
import json, time, torch
began = time.perf_counter()
import opforge
imported = time.perf_counter()
op = opforge.get_accelerator().create_op_builder("CPUAdamBuilder").load()
loaded = time.perf_counter()
print(json.dumps({"import": imported - began, "load": loaded - imported, "origin": op.origin}))
"""


class LoadedOp(NamedTuple):
    """Where one op was loaded from, and how long that took."""

    builder: str
    origin: str  # "built", "cache", or the path of a layer
    seconds: float  # of this process's load, including a build
    build_seconds: float  # of the build, in this process or earlier, as the entry's record says


class WarmLoad(NamedTuple):
    """Seconds in fresh processes, after `import torch`: medians."""

    load: float
    imported: float
    first: float  # of the first process, which is not in the medians
    processes: int


def load_all(console: Console) -> list[LoadedOp]:
    """Loads every op, and builds those that are not cached. Shows a bar on a terminal."""
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[title]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        return [_load(name, progress) for name in BUILDERS]


def _load(name: str, progress: Progress) -> LoadedOp:
    builder = get_accelerator().create_op_builder(name)
    if not isinstance(builder, OpBuilder):
        raise SystemExit(
            f"{name}: the accelerator {get_accelerator().name} has no such op; set OPFORGE_ACCELERATOR=cpu"
        )
    bar = progress.add_task(name, total=None, title="looking it up")
    began = time.perf_counter()
    entry = builder.build(
        on_progress=lambda done, total, title: progress.update(bar, completed=done, total=total, title=title)
    )
    builder.load()
    seconds = time.perf_counter() - began
    total = progress.tasks[-1].total or 1
    progress.update(bar, completed=total, total=total, title=entry.origin)
    progress.stop_task(bar)
    return LoadedOp(name, entry.origin, seconds, float(entry.record["seconds"]))


def warm_load(processes: int) -> WarmLoad:
    """Loads CPUAdam in `processes` fresh processes after a first one. Returns their times.

    The first process may compile Python files, and hash files that were changed in the last seconds. So it is not in
    the medians.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    loads = []
    for _ in range(1 + processes):
        process = subprocess.run(
            [sys.executable, "-c", WARM_LOAD], env=environment, capture_output=True, text=True, check=False
        )
        if process.returncode:
            raise SystemExit(f"a process that loads CPUAdamBuilder exited with {process.returncode}:\n{process.stderr}")
        loads.append(json.loads(process.stdout))
        if loads[-1]["origin"] == "built":
            raise SystemExit("CPUAdamBuilder was built again by a process that should have loaded it from the cache")
    first, *later = loads
    return WarmLoad(
        statistics.median(load["load"] for load in later),
        statistics.median(load["import"] for load in later),
        first["load"],
        len(later),
    )
