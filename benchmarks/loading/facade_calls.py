"""What does a call of a function cost on the facade, over a pybind11 build of the same source?

Both libraries are in one process, and are called by turns. What counts is the processor time of the thread that calls:
another program's share of the machine is none of it.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sysconfig
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.scratch import Scratch
from opforge.bench.harness import Report
from opforge.builders.facade.flags import compile_flags, link_torch_headers
from opforge.builders.toolchains.host import find_compiler

ROUNDS, CALLS = 60, 500
TORCH, FACADE = "torch's headers", "the facade"
SOURCE = Path(__file__).parents[1] / "csrc" / "pybind_calls.cpp"
GOAL_OF_A_CALL, GOAL_OF_SCATTER = 2.0, 1.5
CASES: dict[str, tuple[Callable[[Any], Callable[..., object]], str]] = {
    "no arguments": (lambda m: m.nothing, ""),
    "a number": (lambda m: m.number, "n"),
    "a tensor, returned": (lambda m: m.same, "x"),
    "a tensor's sizes": (lambda m: m.elements, "x"),
    "x.sqrt()": (lambda m: m.root, "x"),
    "x.add(y)": (lambda m: m.sum_of_two, "xy"),
    "torch::empty": (lambda m: m.made, "x"),
    "x.select(0, 0)": (lambda m: m.selected, "x"),
    "scatter_sum, a function": (lambda m: m.scatter_sum, "xi0n"),
    "scatter_sum, an op": (lambda m: getattr(torch.ops, m.__name__).scatter_sum.default, "xi0n"),
    "scatter_sum, an op, with a gradient": (lambda m: getattr(torch.ops, m.__name__).scatter_sum.default, "gi0n"),
    "a Function without a gradient": (lambda m: m.through_function, "x"),
    "a Function with a gradient": (lambda m: m.through_function, "g"),
}
"""Each with the function of a module, and a letter for each argument."""
ONE_CALL, SCATTER = ("x.sqrt()", "x.add(y)", "torch::empty", "x.select(0, 0)"), "scatter_sum, an op"


def run(scratch: Scratch) -> Report:
    """Calls each function of both builds by turns."""
    report = Report(
        "calls of functions of a module and of an op, tensors of 4 elements",
        f"the rival is {TORCH}: the same source, compiled with the flags of torch's builder",
    )
    folder = Path(scratch.new_folder("facade-calls"))
    modules = {name: _module(folder, name) for name in (TORCH, FACADE)}
    torch.set_num_threads(1)
    arguments = {
        "x": torch.ones(4),
        "y": torch.ones(4),
        "g": torch.ones(4, requires_grad=True),
        "i": torch.tensor([0, 1, 0, 1]),
        "n": 2,
        "0": 0,
    }
    ratios = {}
    for case, (function_of, letters) in CASES.items():
        timers = {
            name: timeit.Timer(
                "f(*a)",
                timer=time.thread_time,
                globals={"f": function_of(module), "a": [arguments[c] for c in letters]},
            )
            for name, module in modules.items()
        }
        samples: dict[str, list[float]] = {name: [] for name in timers}
        for _ in range(ROUNDS):
            for name, timer in timers.items():
                samples[name].append(timer.timeit(CALLS) / CALLS * 1e9)
        table = report.table(case, "ns", against=(TORCH,))
        for name, values in samples.items():
            table.add(name, values)
        ratios[case] = statistics.median(samples[FACADE]) / statistics.median(samples[TORCH])
    for case in ONE_CALL:
        report.figure(f"{case}, over {TORCH}", ratios[case], "of the time", GOAL_OF_A_CALL)
    report.figure(f"{SCATTER}, over {TORCH}", ratios[SCATTER], "of the time", GOAL_OF_SCATTER)
    return report


def _module(folder: Path, contender: str) -> ModuleType:
    """Compiles the source for a contender, and imports it."""
    name = "calls_facade" if contender == FACADE else "calls_torch"
    library = folder / f"{name}.so"
    subprocess.run([*_command(folder, name, contender), "-o", str(library)], check=True)
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _command(folder: Path, name: str, contender: str) -> Sequence[str]:
    compiler, root, python = find_compiler(), Path(torch.__file__).parent, Path(sysconfig.get_path("include"))
    if contender == FACADE:
        headers = folder / "torch-headers"
        headers.mkdir()
        link_torch_headers(headers, root / "include")
        return [
            *compiler,
            "-O2",
            *compile_flags(name, headers, python),
            "-shared",
            str(SOURCE),
            f"-L{root / 'lib'}",
            "-ltorch_cpu",
        ]
    include = root / "include"
    folders = (include, include / "torch" / "csrc" / "api" / "include", python)
    of_torch = [part for path in folders for part in ("-isystem", os.fspath(path))]
    defines = (f"-DTORCH_EXTENSION_NAME={name}", "-DTORCH_API_INCLUDE_EXTENSION_H")
    libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    return [*compiler, "-O2", "-std=c++20", "-fPIC", *defines, *of_torch, "-shared", str(SOURCE), *libraries]
