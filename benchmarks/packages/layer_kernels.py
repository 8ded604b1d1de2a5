"""What does a layer with a kernel of a scope cost beside the kernel itself, and what do entering and leaving cost?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.scratch import Scratch
from opforge.bench.harness import Report, scaled

MODULES, ROUNDS, CALLS = 1000, 15, 2000
ITSELF, LAYER, GUARDED = "the kernel as a module", "a layer with the kernel", "a layer, of a kernel without a backward"


def run(scratch: Scratch) -> Report:
    """Takes turns in this process. Times are of the processor: the calls do not wait."""
    import torch

    import opforge
    from opforge.models import LayerKernel

    class Original(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    class Kernel(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    class WithoutBackward(torch.nn.Module):
        has_backward = False

        def forward(self, x: Any) -> Any:
            return x

    report = Report(
        f"a call of a layer whose kernel returns its input, and a scope of {MODULES:,} modules; processor time",
        f"{ITSELF}: torch's call of a module, with nothing replaced",
    )
    x, itself, layer, guarded = torch.ones(1), Kernel(), Original(), Original()
    calls: dict[str, list[float]] = {ITSELF: [], LAYER: [], GUARDED: []}
    with (
        torch.inference_mode(),
        opforge.kernels_for(layer, {"Original": LayerKernel(Kernel)}),
        opforge.kernels_for(guarded, {"Original": LayerKernel(WithoutBackward)}),
    ):
        for _round in range(ROUNDS):
            for name, module in ((ITSELF, itself), (LAYER, layer), (GUARDED, guarded)):
                calls[name].append(_seconds(module, x))
    table = report.table("A call", "us", against=(ITSELF,))
    for name, samples in calls.items():
        table.add(name, scaled(samples, 1e6))
    for name in (LAYER, GUARDED):
        report.figure(f"{name}, over the kernel itself", (min(calls[name]) - min(calls[ITSELF])) * 1e6, "us", 1)
    model = torch.nn.Sequential(*(Original() for _number in range(MODULES - 1)))
    entering, leaving = [], []
    for _round in range(ROUNDS):
        scope = opforge.kernels_for(model, {"Original": LayerKernel(Kernel)})
        began = time.process_time()
        scope.__enter__()
        entered = time.process_time()
        scope.__exit__(None, None, None)
        leaving.append(time.process_time() - entered)
        entering.append(entered - began)
    scopes = report.table(f"A scope of {MODULES:,} modules", "ms")
    scopes.add("entering", scaled(entering, 1e3))
    scopes.add("leaving", scaled(leaving, 1e3))
    report.figure("entering", statistics.median(entering) * 1e3, "ms", 20)
    report.figure("leaving", statistics.median(leaving) * 1e3, "ms", 5)
    return report


def _seconds(module: Callable[[Any], object], x: Any) -> float:
    """Returns the processor seconds of one call."""
    began = time.process_time()
    for _number in range(CALLS):
        module(x)
    return (time.process_time() - began) / CALLS
