"""A process in which an op's source is edited, loaded and called, again and again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
    """Times opforge for a source on the stable ABI, in turns with the compiler alone."""
    alone: list[float] = []
    samples = _edits("stable_relu.cpp", "torch-stable", source, int(rounds), lambda: alone.append(_compile(source)))
    return {**samples, "compiler": alone[2:]}


def facade(source: str, rounds: str) -> dict[str, Any]:
    """Times opforge for the source of cpp_extension."""
    return _edits("pybind_relu.cpp", "torch-facade", source, int(rounds), lambda: None)


def _edits(template: str, abi: str, source: str, rounds: int, then: Callable[[], None]) -> dict[str, list[float]]:
    """Returns the seconds of a first build, of the edit that makes the kept header, and of others.

    The precompiled header is in the store after the second build (opforge.builders.run.precompiled_header).

    Args:
        template: The name of the source's text.
        abi: The ABI.
        source: The path of the source.
        rounds: The number of other edits.
        then: Called after each.
    """
    import torch

    import opforge

    x = torch.tensor([-1.0, 3.0])
    samples: list[float] = []
    for turn in range(2 + rounds):
        began = time.perf_counter()
        write_op(template, source, f"{_slope(turn)}f")
        y = opforge.load("bench_relu", [source], abi=abi).bench_relu(x)
        samples.append(time.perf_counter() - began)
        if y.tolist() != [-_slope(turn), 3.0]:
            raise AssertionError(f"after edit {turn} the op returned {y.tolist()}, expected {[-_slope(turn), 3.0]}")
        then()
    return {"first": samples[:1], "header": samples[1:2], "edits": samples[2:]}


def _compile(source: str) -> float:
    """Returns the seconds that the compiler takes for the same library."""
    import torch

    torch_folder = os.path.dirname(str(torch.__file__))
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
