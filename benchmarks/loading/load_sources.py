"""How long does `.load()` take in a fresh process by where the op is: the cache, a layer, a wheel, a store that was
copied or is read-only, with and without a folder in which the look-up can be remembered?"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.scratch import Scratch
from opforge.bench.harness import Report, ratio, scaled

ROUNDS, LONG_ROUNDS = 7, 100
CHILD, BUILDER = "loading.child_load", "CPUAdamBuilder"
CACHE = "cache"
NO_MEMORY = {"XDG_CACHE_HOME": os.path.join(os.devnull, "none"), "XDG_RUNTIME_DIR": ""}
READ_ONLY = """#!/bin/sh
exec unshare -m sh -c 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"' {store} {python} "$@"
"""
WHEEL_BUILDER = "bench_wheel:WheelAdamBuilder"
WHEEL = """from opforge.builders.cpu.adam import CPUAdamBuilder


class WheelAdamBuilder(CPUAdamBuilder):
    pass
"""


class Contender(NamedTuple):
    """One place that the op is loaded from."""

    arguments: tuple[str, ...]
    settings: dict[str, str]
    goal: float
    """How many times a cache hit it may take."""
    python: str = sys.executable


def run(scratch: Scratch) -> Report:
    """Runs contenders in turns, in one fresh process each. The first three rounds, which remember, are not counted."""
    report = Report(
        "one `.load()` of a built op in a fresh process, after `import torch` and the package's own import, by where"
        " the op is; with Python's garbage collector off and on",
        f"{CACHE}: the op is in the user's own store, and the look-up is remembered",
    )
    contenders = _contenders(scratch, report)
    samples: dict[str, dict[str, list[float]]] = {mode: {name: [] for name in contenders} for mode in ("off", "on")}
    for turn in range(-3, LONG_ROUNDS if scratch.long else ROUNDS):
        if turn == -2:
            time.sleep(2.1)  # what is based on files changed in the last two seconds is not remembered
        for name, contender in contenders.items():
            for mode, times in samples.items():
                settings = {**contender.settings, "BENCH_COLLECTOR": mode}
                load = scratch.run_child(CHILD, *contender.arguments, python=contender.python, **settings)
                if turn >= 0:
                    times[name].append(load["load"])
    for mode, times in samples.items():
        table = report.table(f"Load, collector {mode}", "ms", against=(CACHE,))
        for name, contender in contenders.items():
            table.add(name, scaled(times[name], 1e3))
            if name != CACHE:
                factor = ratio(times[name], times[CACHE])
                report.figure(f"{name}, collector {mode}", factor, "times a cache hit", contender.goal)
        report.figure(f"{CACHE}, collector {mode}", statistics.median(times[CACHE]) * 1e3, "ms", 2)
    return report


def _contenders(scratch: Scratch, report: Report) -> dict[str, Contender]:
    """Builds the op, ships it and copies the store. Returns the contenders by name."""
    memory, empty = {"XDG_CACHE_HOME": scratch.new_folder("memory")}, scratch.new_folder("empty")
    site = wheel_site(scratch)
    layer = os.path.join(site, "bench_wheel", "_opforge_ops")
    shipped = {"OPFORGE_CACHE_DIR": empty, "OPFORGE_CACHE_LAYERS": layer}
    wheel = {
        "OPFORGE_CACHE_DIR": empty,
        "PYTHONPATH": os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH", "")])),
    }
    ours, from_wheel = ("ours", BUILDER), ("ours-class", WHEEL_BUILDER)
    contenders = {
        CACHE: Contender(ours, memory, 1),
        "layer": Contender(ours, {**shipped, **memory}, 1.2),
        "wheel": Contender(from_wheel, {**wheel, **memory}, 1.2),
        "copied store": Contender(ours, {"OPFORGE_CACHE_DIR": copied_store(scratch), **memory}, 1.2),
        "layer, nothing writable": Contender(ours, {**shipped, **NO_MEMORY}, 1.5),
        "wheel, nothing writable": Contender(from_wheel, {**wheel, **NO_MEMORY}, 1.5),
    }
    store = copied_store(scratch)
    python, problem = _python_that_cannot_write(store, scratch)
    if problem:
        report.left_out.append(f"read-only store: {problem}")
        return contenders
    own = {"OPFORGE_CACHE_DIR": store}
    contenders["read-only store"] = Contender(ours, {**own, **memory}, 1.2, python)
    contenders["read-only store, nothing writable"] = Contender(ours, {**own, **NO_MEMORY}, 1.5, python)
    return contenders


def copied_store(scratch: Scratch) -> str:
    """Returns a copy of the store, as in an image: every file has another inode and other times."""
    return shutil.copytree(scratch.cache, os.path.join(scratch.new_folder("copy"), "store"))


def wheel_site(scratch: Scratch) -> str:
    """Builds the op and returns a folder for PYTHONPATH with a package that carries it."""
    from opforge import OpBuilder, get_accelerator
    from opforge.builders.declaration.description import description_key
    from opforge.cache import layer
    from opforge.cache.layout import PACKAGE_LAYER
    from opforge.foundation.file_owners import trusted_ids

    builder = get_accelerator().create_op_builder(BUILDER)
    assert isinstance(builder, OpBuilder)
    site = scratch.new_folder("site")
    package = os.path.join(site, "bench_wheel")
    os.mkdir(package)
    with open(os.path.join(package, "__init__.py"), "w", encoding="utf-8") as file:
        file.write(WHEEL)
    layer.add(os.path.join(package, PACKAGE_LAYER), builder.build(), description_key(builder.spec()), trusted_ids())
    return site


def _python_that_cannot_write(store: str, scratch: Scratch) -> tuple[str, str]:
    """Returns a Python that cannot write the store, and why there is none.

    The modes of files mean nothing to root: its processes see the store as a read-only file system.
    """
    if os.geteuid() != 0:
        for folder, _folders, _files in os.walk(store):
            os.chmod(folder, 0o500)
        return sys.executable, ""
    path = scratch.path("read-only", "python")
    with open(path, "w", encoding="utf-8") as file:
        file.write(READ_ONLY.format(store=store, python=sys.executable))
    os.chmod(path, 0o700)
    done = subprocess.run([path, "-c", ""], capture_output=True, text=True, check=False)
    return path, done.stderr.strip()
