"""How long is it to a kernel's first result in a fresh process: prebuilt in a layer, and by Triton itself?

From the load of RMS norm to the end of its first launch; imports come before the clock.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import replace

from benchmarks.scratch import ChildError, Scratch

from .child_launch import PREBUILT, TRITON
from .targets import FIRST_LAUNCH, OURS
from .timing import Figure, Gpu

BUILDER = "opforge.builders.triton.norms:TritonRMSNormBuilder"
COLD, WARM = "Triton, nothing compiled", "Triton, its own cache warm"
ROUNDS = 5
TASK = "first launch of RMS norm, fresh process"


def run(gpu: Gpu) -> list[Figure]:
    """Builds a layer, or takes the one that OPFORGE_CACHE_LAYERS names, then starts a process of each kind by turns."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(folder)
        layer = os.environ.get("OPFORGE_CACHE_LAYERS", "")
        if not layer:
            layer = scratch.path("layer")
            build = [sys.executable, "-m", "opforge", "build-ops", BUILDER, "--target", gpu.target, "--out", layer]
            scratch.output(build, OPFORGE_CACHE_DIR=scratch.fresh("built"))
        samples: dict[str, list[float]] = {OURS: [], COLD: [], WARM: []}
        for _ in range(ROUNDS):
            for name, seconds in one_round(scratch, layer, gpu.device, gpu.target).items():
                samples[name].append(seconds)
    return compared(samples)


def one_round(scratch: Scratch, layer: str, device: str, target: str) -> dict[str, float]:
    """Seconds of one process of each kind, with stores that are empty but for the layer. Raises ChildError."""
    prebuilt = scratch.child(
        "gpu.child_launch",
        *(PREBUILT, device, target),
        OPFORGE_CACHE_DIR=scratch.fresh("store"),
        OPFORGE_CACHE_LAYERS=layer,
        OPFORGE_PREBUILT="require",
    )
    if prebuilt["origin"] not in layer.split(os.pathsep):
        raise ChildError(f"the prebuilt kernel came from {prebuilt['origin']!r}, expected {layer}")
    private = scratch.fresh("triton")
    seconds = {OURS: prebuilt["first"]}
    for name in (COLD, WARM):
        store = scratch.fresh("store")
        settings = {"OPFORGE_CACHE_DIR": store, "OPFORGE_TRITON_JIT": "1", "TRITON_CACHE_DIR": private}
        told = scratch.child("gpu.child_launch", TRITON, device, target, **settings)
        if (told["compiled"] > 0) != (name == COLD):
            raise ChildError(f"{name}: {told['compiled']} files were added to Triton's cache")
        seconds[name] = told["first"]
    return seconds


def compared(samples: dict[str, list[float]]) -> list[Figure]:
    """The figures, with how many times as long as ours a cold launch takes."""
    figures = {
        name: Figure(TASK, name, statistics.median(some) * 1e6, min(some) * 1e6, None, None)
        for name, some in samples.items()
    }
    ours, cold = figures[OURS], figures[COLD]
    times = cold.microseconds / ours.microseconds
    note = f"a cold one takes {times:.1f} times as long"
    goal = f"a cold one takes {FIRST_LAUNCH:g} times as long"
    figures[OURS] = replace(ours, target=goal, met=times >= FIRST_LAUNCH, note=note)
    return list(figures.values())
