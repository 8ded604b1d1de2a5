"""What does a tuning result cost: at the load of an op, at its first call, and at later calls?"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.scratch import Scratch
from opforge.bench.harness import Report, scaled
from opforge.builders.cpu.lion import CPULionBuilder

ROUNDS, BATCHES, CALLS = 24, 100, 100
TUNED, UNTUNED = "with a result of 8 sizes", "without a result"
CHILD = "loading.tuned"
SIZE = 64
"""Elements of the call: a step that takes about a microsecond, so that the choice of the values shows."""


def run(scratch: Scratch) -> Report:
    """Runs both in turns, in a fresh process each, with stores that differ in the result alone."""
    report = Report(
        "`.load()` of CPULion in a fresh process, and calls of 64 elements, with and without a tuning result",
        f"{UNTUNED}: the same op in another store",
    )
    stores = {name: os.path.join(scratch.folder, f"tuned-{number}") for number, name in enumerate((TUNED, UNTUNED))}
    scratch.run_child(CHILD, "build", OPFORGE_CACHE_DIR=stores[UNTUNED])
    scratch.run_child(CHILD, "tune", OPFORGE_CACHE_DIR=stores[TUNED])
    samples: dict[str, list[Mapping[str, Any]]] = {name: [] for name in stores}
    for turn in range(-2, ROUNDS):
        if turn == -1:
            time.sleep(2.1)  # nothing is remembered of files that were just written
        for name, store in list(stores.items())[:: -1 if turn % 2 else 1]:
            sample = scratch.run_child(CHILD, "load", OPFORGE_CACHE_DIR=store)
            if turn >= 0:
                samples[name].append(sample)
    for what, unit, factor, goal in (
        ("load", "ms", 1e3, 0.1),
        ("processor", "ms", 1e3, 0.1),
        ("first", "ms", 1e3, 0.1),
        ("later", "us", 1e6, 0.5),
    ):
        titles = {"load": "Load", "processor": "Load, processor time", "first": "First call", "later": "A later call"}
        table = report.table(titles[what], unit, against=(UNTUNED,))
        for name, values in samples.items():
            table.add(name, scaled((value[what] for value in values), factor))
        differences = [tuned[what] - plain[what] for tuned, plain in zip(*samples.values(), strict=True)]
        added = statistics.median(differences) * factor
        report.figure(f"{titles[what]}: what the result adds, median of each round's difference", added, unit, goal)
        best = min(value[what] for value in samples[TUNED]) - min(value[what] for value in samples[UNTUNED])
        report.figure(f"{titles[what]}: what the result adds, between the best of both", best * factor, unit, goal)
    tuned, plain = (values[0] for values in samples.values())
    assert tuned["rows"] == 8 and plain["rows"] == 0
    report.notes.append(f"modules that a load imported: {tuned['modules']} with, {plain['modules']} without a result")
    return report


def main() -> None:
    """Prints one JSON object."""
    print(json.dumps({"build": _build, "tune": _tune, "load": _load}[sys.argv[1]]()))


def _build() -> dict[str, Any]:
    import torch  # noqa: F401  # the library needs it

    CPULionBuilder().load()
    return {}


def _tune() -> dict[str, Any]:
    """Builds the op, and writes a result as `opforge tune` does: every second size has another config."""
    import torch  # noqa: F401  # the library needs it

    from opforge.builders.lookup import tuned
    from opforge.builders.lookup import tuning_results as records
    from opforge.cache.current_store import own_store

    entry = CPULionBuilder().load().__entry__
    wanted, timed = tuned.wanted("cpu_lion", entry), {"ratio": 0.9, "low": 0.85, "high": 0.95, "why": ""}
    others = [{"config": {"grain": 2048}, **timed}] * 9
    rows = [
        {"what": "", "dtype": dtype, "size": size, "config": {"threads": 1}, **timed, "rounds": 15, "others": others}
        for dtype in ("bfloat16", "float32")
        for size in (64, 4096, 1 << 18, 1 << 24)
    ]
    value = {"format": 1, "op": wanted.op, "kernel": wanted.description, "target": wanted.target}
    records.write(own_store().layout.root, {**value, "cores": wanted.cores, "rows": rows})
    return {}


def _load() -> dict[str, Any]:
    import torch

    import opforge

    accelerator = opforge.get_accelerator()
    builder = accelerator.create_op_builder("CPULionBuilder")
    assert builder is not None
    before, processor, began = len(sys.modules), time.process_time(), time.perf_counter()
    op = builder.load()
    loaded, spent = time.perf_counter() - began, time.process_time() - processor
    from opforge.fast_path import library

    lists = [[torch.ones(SIZE)] for _ in range(3)]
    rate = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "maximize": False}
    step = op.multi_lion_
    began = time.perf_counter()
    step(*lists, **rate)
    first = time.perf_counter() - began
    later = float("inf")
    for _batch in range(BATCHES):  # the best: between two batches another process may run
        began = time.perf_counter()
        for _ in range(CALLS):
            step(*lists, **rate)
        later = min(later, (time.perf_counter() - began) / CALLS)
    rows = len(library.tuned.get(op.__entry__.key, []))
    modules = len(sys.modules) - before
    return {"load": loaded, "processor": spent, "first": first, "later": later, "rows": rows, "modules": modules}


if __name__ == "__main__":
    main()
