"""How long does `get_kernel` take for what is installed, against Python's import of the same files, and how long does
installing 1 MB from this machine take, to the first call?"""

from __future__ import annotations

import os
import statistics

from benchmarks.scratch import CHECKOUT, Scratch, served
from opforge.bench.harness import Report, ratio, scaled

ROUNDS, LONG_ROUNDS = 9, 60
CHILD, NAME = "packages.child_kernel", "bench/scale"
FILLER_BYTES = 1_000_000
REQUESTS = 3
SOURCE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor scale(const Tensor& x) { return torch::stable::empty_like(x); }
STABLE_TORCH_LIBRARY(bench_scale, m) { m.def("scale(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(bench_scale, CPU, m) { m.impl("scale", TORCH_BOX(&scale)); }
"""
PROJECT = """\
name = "bench/scale"
version = "2.1"
license = "Apache-2.0"
python = "python"
[op]
sources = ["scale.cpp"]
"""


def run(scratch: Scratch) -> Report:
    """Packs a package, serves it, and runs the contenders in turns, each in a fresh process."""
    report = Report(
        "`get_kernel` of an installed package in a fresh process, after `import torch`; the same again; and installing"
        " it from a server on this machine, to the first call",
        "import: Python's import of the same files, which opens the library and checks nothing",
    )
    registry, installed = installed_package(scratch)
    trees = os.path.join(installed, "kernels", "trees")
    (tree,) = os.listdir(trees)
    times: dict[str, list[float]] = {"import": [], "get_kernel": [], "again": [], "install": [], "opforge's import": []}
    requests: list[str] = []
    with served(registry, requests) as url:
        for _number in range(LONG_ROUNDS if scratch.long else ROUNDS):
            times["import"].append(scratch.run_child(CHILD, "bare", os.path.join(trees, tree))["load"])
            ours = scratch.run_child(CHILD, "ours", NAME, OPFORGE_KERNEL_PATH=installed)
            times["get_kernel"].append(ours["load"])
            times["again"].append(ours["again"])
            times["opforge's import"].append(ours["import"])
            requests.clear()
            root = scratch.new_folder("root")
            fetched = scratch.run_child(CHILD, "install", NAME, f"{url}?unsigned=1", root, OPFORGE_KERNEL_PATH=root)
            times["install"].append(fetched["total"])
    table = report.table("Loading and installing", "ms", against=("import",))
    for name, samples in times.items():
        table.add(name, scaled(samples, 1e3))
    report.figure("get_kernel", ratio(times["get_kernel"], times["import"]), "times the import", 2)
    report.figure("get_kernel again", statistics.median(times["again"]) * 1e6, "us", 5)
    report.figure("install and first call", statistics.median(times["install"]) * 1e3, "ms", 80)
    report.figure("requests of an installation", len(requests), "requests", REQUESTS)
    return report


def installed_package(scratch: Scratch) -> tuple[str, str]:
    """Packs a package, publishes and installs it. Returns the folders of the registry and of what is installed."""
    project = scratch.new_folder("project")
    write_project(project)
    registry, installed = scratch.new_folder("registry"), scratch.new_folder("installed")
    command(scratch, "pack", project, "--no-try")
    command(scratch, "publish", f"file://{registry}?unsigned=1", project)
    command(scratch, "install", NAME, "--into", installed, "--remote", f"file://{registry}?unsigned=1")
    return registry, installed


def write_project(folder: str, size: int = FILLER_BYTES) -> None:
    """Writes the project of a package with an op, and a table of so many bytes."""
    os.mkdir(os.path.join(folder, "python"))
    # Random bytes do not compress: the blob has about this size.
    with open(os.path.join(folder, "python", "table.bin"), "wb") as table:
        table.write(os.urandom(size))
    files = {
        "kernel.toml": PROJECT,
        "scale.cpp": SOURCE,
        "python/__init__.py": "from ._ops import ops\n\n\ndef scale(x):\n    return ops.scale(x)\n",
    }
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def command(scratch: Scratch, *words: str) -> None:
    """Runs a command of opforge's."""
    import subprocess
    import sys

    environment = scratch.environment()
    path = os.pathsep.join(filter(None, [os.path.join(CHECKOUT, "src"), environment.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "opforge", *words]
    subprocess.run(command, env={**environment, "PYTHONPATH": path}, check=True, capture_output=True)
