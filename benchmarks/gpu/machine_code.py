"""`python -m benchmarks.gpu.machine_code`: what the machine code of the attention kernels says of their speed.

The kernels are compiled by Triton; no GPU is needed. The table has, for the loop over whole tiles, the instructions of
a warp, and the share of the tensor cores' peak at which issuing them would be the limit: tensor clocks over issue
clocks. It is a bound, not a prediction: waiting for memory and for other instructions comes on top.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from opforge.builders.toolchains.triton import WORKER
from opforge.builders.triton import attention
from opforge.builders.triton_op_builder.builder import KERNELS
from opforge.builders.triton_op_builder.kernel import Kernel

PRODUCTS = {"forward": 2, "backward_queries": 3, "backward_keys": 4, "backward_bias": 2, "paged": 2}
"""Function -> the products of ROWS x KEYS x SIZE of one tile."""
MACS = 1024 * 2
"""Multiplications of bfloat16 that a multiprocessor of an H100 adds up in a clock, by its data sheet."""
SCHEDULERS = 4
"""Instructions that a multiprocessor issues in a clock, each of another warp."""
SHOWN = re.compile(r"^(?:forward|backward_keys|backward_queries|backward_bias)_dense_bf16_(?:32|64|128)_[012]$")
HEAD = ("kernel", "instructions", "bound", "loads", "async copies", "barriers", "registers", "shared, KiB")


class Figures(NamedTuple):
    """What a kernel's machine code has: registers of a thread, bytes of shared memory, the loop's instructions."""

    registers: int
    shared: int
    loop: list[str]

    def count(self, *names: str) -> int:
        """Returns how many instructions of the loop have one of these names."""
        counts = Counter(self.loop)
        return sum(counts[name] for name in names)


def _worker() -> Any:
    spec = importlib.util.spec_from_file_location("triton_worker", WORKER)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(program: str, *arguments: str) -> str:
    import triton

    path = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", program)
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def _loops(listing: str) -> Iterator[list[str]]:
    """Yields the instructions of each loop: from a label to a branch back to it."""
    names, labels, branches = list[str](), dict[str, int](), list[tuple[int, str]]()
    for line in listing.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line.strip()):
            labels[label[1]] = len(names)
        elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)(.*?);", line):
            target = re.search(r"`\((\.L_x_\d+)\)", instruction[2])
            if instruction[1] == "BRA" and target:
                branches.append((len(names), target[1]))
            names.append(instruction[1])
    for end, begin in branches:
        if labels.get(begin, end + 1) <= end:
            yield names[labels[begin] : end + 1]


def figures_of(kernel: Kernel, arch: str, worker: Any, modules: dict[str, Any]) -> Figures:
    """Returns the figures of a kernel that is compiled for an architecture. Its loop is the shortest with products."""
    path = os.path.join(KERNELS.path, kernel.source)
    module = modules.get(path) or modules.setdefault(path, worker._import(path))
    declared = json.loads(kernel.text())
    image = worker._compile(worker._function(module, declared), declared, "cuda", arch)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image["content"])
        file.flush()
        registers = re.search(r"REG:(\d+)", _run("cuobjdump", "-res-usage", file.name))
        loops = list(_loops(_run("nvdisasm", "-c", file.name)))
    assert registers
    with_products = [loop for loop in loops if any(name in ("HGMMA", "HMMA") for name in loop)]
    return Figures(int(registers[1]), image["shared"], min(with_products, key=len, default=[]))


def bound(kernel: Kernel, instructions: int) -> float:
    """Returns the share of the tensor cores' peak that so many instructions of a warp for a tile allow."""
    sizes = [kernel.constants[name] for name in ("ROWS", "KEYS", "SIZE")]
    rows, keys, size = (int(value or 0) for value in sizes)
    clocks = PRODUCTS[kernel.function] * rows * keys * size / MACS
    return clocks / (instructions * kernel.warps / SCHEDULERS)


def rows(pattern: re.Pattern[str], arch: str) -> Iterator[tuple[str, ...]]:
    """Yields the rows of the table."""
    worker, modules = _worker(), dict[str, Any]()
    kernels = [*attention.dense_kernels(), *attention.block_kernels(), *attention.paged_kernels()]
    for kernel in kernels:
        if pattern.search(kernel.name):
            figures = figures_of(kernel, arch, worker, modules)
            count = len(figures.loop)
            share = f"{100 * bound(kernel, count):.0f} %" if count else ""
            numbers = (figures.count("LDG"), figures.count("LDGSTS"), figures.count("BAR", "WARPSYNC"))
            yield (
                f"`{kernel.name}`",
                str(count),
                share,
                *map(str, numbers),
                str(figures.registers),
                f"{figures.shared / 1024:.0f}",
            )


def main() -> int:
    """Prints the table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.machine_code", description=__doc__)
    parser.add_argument("pattern", nargs="?", default=SHOWN.pattern, help="which kernels, as a regular expression")
    parser.add_argument("--arch", default="sm_90a", help="the architecture (default: sm_90a)")
    options = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n|{' -- |' * len(HEAD)}")
    for row in rows(re.compile(options.pattern), options.arch):
        print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
