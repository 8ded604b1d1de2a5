"""The CPU optimizers' ops: built where nothing is cached, with a bar on a terminal; and how long a load takes."""

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


class Built(NamedTuple):
    """How one op was come by."""

    builder: str
    origin: str  # "built", "cache", or the layer that held it
    seconds: float  # of this process's load, a build included
    build_seconds: float  # of the build, now or then, by the entry's own record


class WarmLoad(NamedTuple):
    """Seconds in fresh processes, after `import torch`: medians."""

    load: float
    imported: float
    first: float  # of the first process, which is not in the medians
    processes: int


def build_all(console: Console) -> list[Built]:
    """Load every op, and build those that are not cached."""
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[title]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        return [_build(name, progress) for name in BUILDERS]


def _build(name: str, progress: Progress) -> Built:
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
    return Built(name, entry.origin, seconds, float(entry.manifest()["built"]["seconds"]))


def warm_load() -> WarmLoad:
    """Load CPUAdam in fresh processes. The first may still compile Python files and hash young ones: told apart."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found = []
    for _ in range(1 + PROCESSES):
        done = subprocess.run(
            [sys.executable, "-c", WARM_LOAD], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"a process that was to load CPUAdamBuilder gave {done.returncode}:\n{done.stderr}")
        found.append(json.loads(done.stdout))
        if found[-1]["origin"] == "built":
            raise SystemExit("CPUAdamBuilder was built again by a process that should have found it in the cache")
    first, *later = found
    return WarmLoad(
        statistics.median(one["load"] for one in later),
        statistics.median(one["import"] for one in later),
        first["load"],
        len(later),
    )
