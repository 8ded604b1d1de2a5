"""What does a source that includes torch/extension.h cost on the facade's headers, over torch's own?

One command of the compiler for each sample, by turns: the same source, after an edit. Processor time and the memory of
the compiler are those of the command alone, as the kernel counts them.
"""

from __future__ import annotations

import os
import statistics
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.scratch import Scratch, write_op
from opforge.bench.harness import Report
from opforge.builders.facade.flags import compile_flags, link_torch_headers
from opforge.builders.toolchains.host import find_compiler

ROUNDS = 3
TORCH, FACADE, KEPT = "torch's headers", "the facade", "the facade, precompiled before"
NAME, SOURCE, FIRST = "pybind_relu", "pybind_relu.cpp", "first.h"


class Cost(NamedTuple):
    """What one command took."""

    cpu: float
    """Seconds of all processors."""
    memory: float
    """The most that one of its processes held, in MB."""


def run(scratch: Scratch) -> Report:
    """Compiles an edited source in three ways by turns, with the flags that a library of it has."""
    report = Report(
        "an unmodified source that includes torch/extension.h, compiled to an object",
        f"{KEPT}: what the source alone costs. The rival is {TORCH}, with the flags of torch's builder",
    )
    folder = Path(scratch.new_folder("facade"))
    commands = _commands(folder)
    (folder / FIRST).write_text("#include <torch/extension.h>\n")
    making = _timed([*commands[FACADE], "-x", "c++-header", str(folder / FIRST), "-o", str(folder / f"{FIRST}.gch")])
    samples: dict[str, list[Cost]] = {}
    for number in range(ROUNDS):
        write_op(SOURCE, str(folder / SOURCE), f"0.{number + 1}f")
        for contender, command in commands.items():
            argv = [*command, "-c", str(folder / SOURCE), "-o", str(folder / "op.o")]
            samples.setdefault(contender, []).append(_timed(argv))
    for what, unit, field in (("processor time", "s", "cpu"), ("memory of the compiler", "MB", "memory")):
        table = report.table(f"One source, {what}", unit, against=(FACADE, TORCH))
        for contender in commands:
            values = [getattr(sample, field) for sample in samples[contender]]
            table.add(contender, values, "ceiling" if contender == KEPT else "")
    torchs, facades, kept = (
        {field: statistics.median(getattr(sample, field) for sample in samples[name]) for field in Cost._fields}
        for name in (TORCH, FACADE, KEPT)
    )
    report.figure("first build, over torch's headers", facades["cpu"] / torchs["cpu"], "of the processor time", 1 / 6)
    report.figure("after an edit, precompiled", kept["cpu"] / torchs["cpu"], "of the processor time", 1 / 20)
    report.figure("memory of the compiler", facades["memory"] / torchs["memory"], "of torch's headers'", 1 / 4)
    size = os.path.getsize(folder / f"{FIRST}.gch") / 1e6
    report.notes.append(f"the precompiled facade takes {making.cpu:.1f} s of processor time to make, and {size:.0f} MB")
    return report


def _commands(folder: Path) -> dict[str, list[str]]:
    """Returns the compiler with the flags of each contender."""
    compiler, include = find_compiler(), Path(torch.__file__).parent / "include"
    python = Path(sysconfig.get_path("include"))
    headers = folder / "torch-headers"
    headers.mkdir()
    link_torch_headers(headers, include)
    facade = [*compiler, "-O2", *compile_flags(NAME, headers, python)]
    folders = (include, include / "torch" / "csrc" / "api" / "include", python)
    of_torch = [part for path in folders for part in ("-isystem", str(path))]
    defines = (f"-DTORCH_EXTENSION_NAME={NAME}", "-DTORCH_API_INCLUDE_EXTENSION_H")
    return {
        TORCH: [*compiler, "-O2", "-std=c++20", "-fPIC", *defines, *of_torch],
        FACADE: facade,
        KEPT: [*facade, "-Winvalid-pch", "-Werror=invalid-pch", "-include", str(folder / FIRST)],
    }


def _timed(argv: Sequence[str]) -> Cost:
    """Runs a command, and returns what it took. Raises RuntimeError if it fails."""
    process = os.posix_spawnp(argv[0], list(argv), os.environ)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"{argv[0]} failed: {' '.join(argv)}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
