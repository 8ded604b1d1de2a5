"""How long is it to a kernel's first result in a fresh process: prebuilt in a layer, and by Triton itself?

From the load of RMS norm to the end of its first launch; imports come before the clock. And the whole process.
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
ALONE = f"{OURS}, the store's first process"
"""Which also looks what other packages add to opforge: the store keeps the answer."""
COLD, WARM = "Triton, nothing compiled", "Triton, its own cache warm"
ROUNDS = 3
TASK = "first launch of RMS norm, fresh process"
WHOLE = "the whole of that process, with its imports"


def run(gpu: Gpu, only: str = "") -> list[Figure]:
    """Builds a layer, or takes the one that OPFORGE_CACHE_LAYERS names, then starts a process of each kind by turns."""
    gpu.check_time()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(folder)
        layer = os.environ.get("OPFORGE_CACHE_LAYERS", "")
        if not layer:
            layer = scratch.path("layer")
            build = [sys.executable, "-m", "opforge", "build-ops", BUILDER, "--target", gpu.target, "--out", layer]
            scratch.output(build, OPFORGE_CACHE_DIR=scratch.fresh("built"))
        samples: dict[str, list[tuple[float, float]]] = {OURS: [], ALONE: [], COLD: [], WARM: []}
        for _ in range(ROUNDS):
            for name, seconds in one_round(scratch, layer, gpu.device, gpu.target).items():
                samples[name].append(seconds)
    launches = {name: [first for first, _whole in some] for name, some in samples.items()}
    wholes = {name: [whole for _first, whole in some] for name, some in samples.items()}
    return [*compared(launches), *_figures(WHOLE, wholes).values()]


def one_round(scratch: Scratch, layer: str, device: str, target: str) -> dict[str, tuple[float, float]]:
    """Seconds to the first result, and of the whole process, of one process of each kind. Raises ChildError.

    No store holds a kernel: ours comes from the layer.
    """
    seconds, store = {}, scratch.fresh("store")
    settings = {"OPFORGE_CACHE_DIR": store, "OPFORGE_CACHE_LAYERS": layer, "OPFORGE_PREBUILT": "require"}
    for name in (ALONE, OURS):
        told, whole = _child(scratch, PREBUILT, device, target, **settings)
        if told["origin"] not in layer.split(os.pathsep):
            raise ChildError(f"the prebuilt kernel came from {told['origin']!r}, expected {layer}")
        seconds[name] = (told["first"], whole)
    private = scratch.fresh("triton")
    for name in (COLD, WARM):
        store = scratch.fresh("store")
        settings = {"OPFORGE_CACHE_DIR": store, "OPFORGE_TRITON_JIT": "1", "TRITON_CACHE_DIR": private}
        told, whole = _child(scratch, TRITON, device, target, **settings)
        if (told["compiled"] > 0) != (name == COLD):
            raise ChildError(f"{name}: {told['compiled']} files were added to Triton's cache")
        seconds[name] = (told["first"], whole)
    return seconds


def _child(scratch: Scratch, *arguments: str, **settings: str) -> tuple[dict[str, Any], float]:
    began = time.perf_counter()
    return scratch.child("gpu.child_launch", *arguments, **settings), time.perf_counter() - began


def _figures(task: str, samples: dict[str, list[float]]) -> dict[str, Figure]:
    return {
        name: Figure(task, name, statistics.median(some) * 1e6, min(some) * 1e6, None, None)
        for name, some in samples.items()
    }


def compared(samples: dict[str, list[float]]) -> list[Figure]:
    """The figures, with how many times as long as ours a cold launch takes."""
    figures = _figures(TASK, samples)
    ours, cold = figures[OURS], figures[COLD]
    times = cold.microseconds / ours.microseconds
    note = f"a cold one takes {times:.1f} times as long"
    goal = f"a cold one takes {FIRST_LAUNCH:g} times as long"
    figures[OURS] = replace(ours, target=goal, met=times >= FIRST_LAUNCH, note=note)
    return list(figures.values())
