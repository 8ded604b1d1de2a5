"""How long does a fresh process take to a kernel's first result: prebuilt in a layer, and by Triton itself?

The clock starts before the load of RMS norm, after all imports, and stops at the end of its first launch. The time of
the whole process is measured too.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

from benchmarks.scratch import ChildError, Scratch

from .child_launch import PREBUILT, TRITON
from .targets import FIRST_LAUNCH, OURS
from .timing import Figure, Gpu

BUILDER = "opforge.builders.triton.norms:TritonRMSNormBuilder"
NEW_STORE = f"{OURS}, the store's first process"
"""This process also scans the entry points of other packages. The store keeps the result for later processes."""
COLD, WARM = "Triton, nothing compiled", "Triton, its own cache warm"
ROUNDS = 3
TASK = "first launch of RMS norm, fresh process"
WHOLE = "the whole of that process, with its imports"


def run(gpu: Gpu, only: str = "") -> list[Figure]:
    """Starts a process of each kind in turns. Builds a layer first, unless OPFORGE_CACHE_LAYERS names one."""
    gpu.check_time()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(folder)
        layer = os.environ.get("OPFORGE_CACHE_LAYERS", "")
        if not layer:
            layer = scratch.path("layer")
            build = [sys.executable, "-m", "opforge", "build-ops", BUILDER, "--target", gpu.target, "--out", layer]
            scratch.output(build, OPFORGE_CACHE_DIR=scratch.new_folder("built"))
        samples: dict[str, list[tuple[float, float]]] = {OURS: [], NEW_STORE: [], COLD: [], WARM: []}
        for _ in range(ROUNDS):
            for name, seconds in run_round(scratch, layer, gpu.device, gpu.target).items():
                samples[name].append(seconds)
    launches = {name: [first for first, _whole in pairs] for name, pairs in samples.items()}
    wholes = {name: [whole for _first, whole in pairs] for name, pairs in samples.items()}
    return [*with_target(launches), *_figures(WHOLE, wholes).values()]


def run_round(scratch: Scratch, layer: str, device: str, target: str) -> dict[str, tuple[float, float]]:
    """Runs one process of each kind. Returns the seconds to the first result, and of the whole process.

    No store holds a kernel: ours is loaded from the layer.

    Raises:
        ChildError: A process failed, or did not load or compile what it should have.
    """
    seconds, store = {}, scratch.new_folder("store")
    settings = {"OPFORGE_CACHE_DIR": store, "OPFORGE_CACHE_LAYERS": layer, "OPFORGE_PREBUILT": "require"}
    for name in (NEW_STORE, OURS):
        launch, whole = _run_child(scratch, PREBUILT, device, target, **settings)
        if launch["origin"] not in layer.split(os.pathsep):
            raise ChildError(f"the prebuilt kernel came from {launch['origin']!r}, expected {layer}")
        seconds[name] = (launch["first"], whole)
    triton_cache = scratch.new_folder("triton")
    for name in (COLD, WARM):
        store = scratch.new_folder("store")
        settings = {"OPFORGE_CACHE_DIR": store, "OPFORGE_TRITON_JIT": "1", "TRITON_CACHE_DIR": triton_cache}
        launch, whole = _run_child(scratch, TRITON, device, target, **settings)
        if (launch["compiled"] > 0) != (name == COLD):
            raise ChildError(f"{name}: {launch['compiled']} files were added to Triton's cache")
        seconds[name] = (launch["first"], whole)
    return seconds


def _run_child(scratch: Scratch, *arguments: str, **settings: str) -> tuple[dict[str, Any], float]:
    """Returns what the child printed, and the seconds of the whole process."""
    began = time.perf_counter()
    return scratch.run_child("gpu.child_launch", *arguments, **settings), time.perf_counter() - began


def _figures(task: str, samples: dict[str, list[float]]) -> dict[str, Figure]:
    return {
        name: Figure(task, name, statistics.median(seconds) * 1e6, min(seconds) * 1e6, None, None)
        for name, seconds in samples.items()
    }


def with_target(samples: dict[str, list[float]]) -> list[Figure]:
    """Returns the figures. Ours has a target: a cold launch by Triton takes FIRST_LAUNCH times as long."""
    figures = _figures(TASK, samples)
    ours, cold = figures[OURS], figures[COLD]
    times = cold.microseconds / ours.microseconds
    note = f"a cold one takes {times:.1f} times as long"
    target = f"a cold one takes {FIRST_LAUNCH:g} times as long"
    figures[OURS] = replace(ours, target=target, met=times >= FIRST_LAUNCH, note=note)
    return list(figures.values())
