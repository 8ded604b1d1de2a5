"""A process in which an op's source is edited, loaded and called, again and again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.scratch import write_op
from opforge.bench.machine import compiler


def main() -> None:
    """Prints one JSON object: lists of seconds by contender."""
    contender, *arguments = sys.argv[1:]
    print(json.dumps({"ours": ours, "facade": facade, "extension": extension}[contender](*arguments)))


def _slope(turn: int) -> float:
    return 2.0 + turn


def ours(source: str, rounds: str) -> dict[str, Any]:
    """Times opforge in turns with the compiler alone. The first round, which also probes the compiler, is not kept."""
    import torch

    import opforge

    x = torch.tensor([-1.0, 3.0])
    samples: list[float] = []
    compiles: list[float] = []
    for turn in range(-1, int(rounds)):
        began = time.perf_counter()
        write_op("stable_relu.cpp", source, f"{_slope(turn)}f")
        y = opforge.load("bench_relu", [source]).bench_relu(x)
        seconds = time.perf_counter() - began
        if y.tolist() != [-_slope(turn), 3.0]:
            raise AssertionError(f"after edit {turn} the op returned {y.tolist()}, expected {[-_slope(turn), 3.0]}")
        alone = _compile(source, os.path.dirname(str(torch.__file__)))
        if turn >= 0:
            samples.append(seconds)
            compiles.append(alone)
    return {"ours": samples, "compiler": compiles}


def facade(source: str, rounds: str) -> dict[str, Any]:
    """Times opforge for the source of cpp_extension: its first build, the edit that makes the kept header, and others.

    The precompiled header is in the store after the second build (opforge.builders.run.precompiled_header).
    """
    import torch

    import opforge

    x = torch.tensor([-1.0, 3.0])
    samples: list[float] = []
    for turn in range(2 + int(rounds)):
        began = time.perf_counter()
        write_op("pybind_relu.cpp", source, f"{_slope(turn)}f")
        y = opforge.load("bench_relu", [source], abi="torch-facade").bench_relu(x)
        samples.append(time.perf_counter() - began)
        if y.tolist() != [-_slope(turn), 3.0]:
            raise AssertionError(f"after edit {turn} the op returned {y.tolist()}, expected {[-_slope(turn), 3.0]}")
    return {"first": samples[:1], "header": samples[1:2], "edits": samples[2:]}


def _compile(source: str, torch_folder: str) -> float:
    """Returns the seconds that the compiler takes for the same library."""
    include = os.path.join(torch_folder, "include")
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "library.so")
        flags = ["-O3", "-fPIC", "-std=c++17", "-shared", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
        libraries = ["-L", os.path.join(torch_folder, "lib"), "-Wl,--no-as-needed", "-ltorch_cpu"]
        command = [*compiler(), *flags, "-isystem", include, source, "-o", output, *libraries]
        began = time.perf_counter()
        subprocess.run(command, check=True)
        return time.perf_counter() - began


def extension(source: str, folder: str) -> dict[str, Any]:
    """Times cpp_extension for one edit of a source that is built already."""
    import torch
    from torch.utils import cpp_extension

    x = torch.tensor([-1.0, 3.0])
    cpp_extension.load("bench_relu", [source], extra_cflags=["-O3"], build_directory=folder)
    began = time.perf_counter()
    write_op("pybind_relu.cpp", source, "2.0f")
    module = cpp_extension.load("bench_relu", [source], extra_cflags=["-O3"], build_directory=folder)
    y = module.bench_relu(x)
    seconds = time.perf_counter() - began
    if y.tolist() != [-2.0, 3.0]:
        raise AssertionError(f"after the edit the op returned {y.tolist()}, expected [-2.0, 3.0]")
    return {"extension": [seconds]}


if __name__ == "__main__":
    main()
