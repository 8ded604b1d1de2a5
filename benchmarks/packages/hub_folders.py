"""How long does a package in a folder, in the hub's form, take to load, beside the hub's own loader?"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time

from benchmarks.packages.kernel_packages import command, write_project
from benchmarks.scratch import Scratch
from opforge.bench.harness import Report, scaled

ROUNDS, LONG_ROUNDS = 7, 40
CHILD = "packages.child_kernel"
FILLER_BYTES = 100_000
THEIRS, FIRST, SECOND = "kernels", "opforge, first process", "opforge, further processes"
PYTHON = 'name = "bench/plain"\nversion = "1"\nlicense = "Apache-2.0"\npython = "python"\n'
LIBRARY, ALONE = "with a library", "of Python alone"
GOALS = {LIBRARY: 0.1, ALONE: 0.2}
"""The processor time of further processes, in that of the hub's loader."""


def run(scratch: Scratch) -> Report:
    """Loads each package in turns, each in a fresh process; of a first one nothing is remembered."""
    report = Report(
        "the import of the loader and one load of a package in a folder, in a fresh process after `import torch`",
        f"{THEIRS}: the hub's loader, which compares no digest",
    )
    if importlib.util.find_spec("kernels") is None:
        report.left_out.append("the hub's loader is missing: pip install kernels==0.17.2")
        return report
    for what, folder in {LIBRARY: _library(scratch), ALONE: _python(scratch)}.items():
        walls: dict[str, list[float]] = {THEIRS: [], FIRST: [], SECOND: []}
        processor: dict[str, list[float]] = {name: [] for name in walls}
        memory = scratch.new_folder("remembered")
        for number in range(-1, LONG_ROUNDS if scratch.long else ROUNDS):  # the round before is not counted
            places = {FIRST: scratch.new_folder("nothing"), SECOND: memory}
            for name in walls:
                child = ("hub", folder) if name == THEIRS else ("folder", folder)
                load = scratch.run_child(
                    CHILD, *child, HF_HUB_OFFLINE="1", XDG_CACHE_HOME=places.get(name, scratch.folder)
                )
                if number >= 0:
                    walls[name].append(load["load"])
                    processor[name].append(load["first"])
        for title, times in (("Load", walls), ("Processor time", processor)):
            table = report.table(f"{title}, a package {what}", "ms", against=(THEIRS,))
            for name, samples in times.items():
                table.add(name, scaled(samples, 1e3))
        median = {name: statistics.median(samples) for name, samples in processor.items()}
        report.figure(f"first load of a package {what}", median[FIRST] / median[THEIRS], f"times {THEIRS}'", 1)
        report.figure(f"further loads of it, {what}", median[SECOND] / median[THEIRS], f"times {THEIRS}'", GOALS[what])
    return report


def _library(scratch: Scratch) -> str:
    project = scratch.new_folder("library")
    write_project(project, FILLER_BYTES)
    return _packed(scratch, project)


def _python(scratch: Scratch) -> str:
    project = scratch.new_folder("python")
    os.mkdir(os.path.join(project, "python"))
    for name, text in (("kernel.toml", PYTHON), ("python/__init__.py", "def scale(x):\n    return x\n")):
        with open(os.path.join(project, name), "w", encoding="utf-8") as file:
            file.write(text)
    return _packed(scratch, project)


def _packed(scratch: Scratch, project: str) -> str:
    command(scratch, "pack", project, "--no-try")
    time.sleep(2.1)  # nothing is remembered of files that were written in the last two seconds
    return project
