"""How long does `.load()` take in a fresh process when the op is in the cache?"""

from __future__ import annotations

import compileall
import os
import statistics
import sys
import time
from typing import Any

from .harness import Report, ratio, scaled
from .scratch import ChildError, Scratch

ROUNDS = 7
OURS, OUTSIDE, TORCH_ABI = "opforge CPUAdam", "opforge CPUAdam, accelerator of another package", "opforge, torch ABI"
EXTENSION, DEEPSPEED = "cpp_extension", "DeepSpeed CPUAdam"
FLOOR = "torch.ops.load_library"


def run(scratch: Scratch) -> Report:
    """Contenders by turns, one fresh process each; two rounds, which may still build and hash, are not counted."""
    report = Report(
        "one `.load()` of a cached op in a fresh process, after `import torch` and the package's own import",
        f"{FLOOR}: the library that opforge built, opened by torch with no look-up and no check",
    )
    library = scratch.child("child_load", "ours", "CPUAdamBuilder")["path"]
    contenders: dict[str, tuple[tuple[str, ...], str, dict[str, str]]] = {
        FLOOR: (("floor", library), sys.executable, {}),
        OURS: (("ours", "CPUAdamBuilder"), sys.executable, {}),
        OUTSIDE: (("ours", "CPUAdamBuilder"), sys.executable, {"PYTHONPATH": _before(package(scratch))}),
        TORCH_ABI: (("ours-torch", scratch.source("pybind_relu.cpp")), sys.executable, {}),
        EXTENSION: (("extension", scratch.source("pybind_relu.cpp"), scratch.extensions), sys.executable, {}),
    }
    if problem := scratch.no_deepspeed():
        report.left_out.append(problem)
    else:
        contenders[DEEPSPEED] = (("deepspeed",), scratch.deepspeed, {})
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for turn in range(-2, ROUNDS):
        if turn == -1:
            time.sleep(2.1)  # files younger than two seconds are hashed once more; the round after that is a plain hit
        for name, (arguments, python, environment) in contenders.items():
            one = scratch.child("child_load", *arguments, python=python, **environment)
            if turn >= 0:
                found[name].append(one)
    accelerators = {one["accelerator"] for one in found[OUTSIDE]}
    if accelerators != {"OutsideAccelerator"}:
        raise ChildError(f"the outside accelerator was not chosen, but {accelerators}")
    loads = report.table("Load", "ms", against=(OURS, FLOOR))
    imports = report.table("Import before it, after torch", "ms")
    again = report.table("A further load in the process", "us", against=(OURS,))
    for name, ones in found.items():
        loads.add(name, scaled((one["load"] for one in ones), 1e3))
        if name != FLOOR:
            imports.add(name, scaled((one["import"] for one in ones), 1e3))
        again.add(name, scaled((one["again"] for one in ones if "again" in one), 1e6))
    times = {name: [one["load"] for one in ones] for name, ones in found.items()}
    report.figure("warm load", statistics.median(times[OURS]) * 1e3, "ms", 1.5)
    report.figure("warm load, accelerator of another package", statistics.median(times[OUTSIDE]) * 1e3, "ms", 1.5)
    report.figure("warm load, torch ABI", statistics.median(times[TORCH_ABI]) * 1e3, "ms", 3)
    report.figure("cpp_extension's hit", ratio(times[EXTENSION], times[OURS]), "times opforge's", 5, at_most=False)
    if DEEPSPEED in times:
        report.figure("DeepSpeed's warm load", ratio(times[DEEPSPEED], times[OURS]), "times opforge's", 1000, False)
    report.figure("import opforge, after torch", _median(found[OURS], "import") * 1e3, "ms", 15)
    report.figure("a further load in the process", _median(found[OURS], "again") * 1e6, "us", 5)
    ours = [one for name in (OURS, OUTSIDE, TORCH_ABI) for one in found[name]]
    unwanted = sorted({name for one in ours for name in one["unwanted"]})
    report.notes.append(f"opforge's Python came {', '.join(sorted({one['byte_code'] for one in ours}))}")
    report.notes.append(f"of the modules that no hit should import, it imported: {', '.join(unwanted) or 'none'}")
    return report


def _median(ones: list[dict[str, Any]], name: str) -> float:
    return statistics.median(one[name] for one in ones)


def _before(folder: str) -> str:
    return os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))


def package(scratch: Scratch) -> str:
    """A folder for PYTHONPATH in which a package that adds an accelerator is installed."""
    folder = scratch.path("site", "")
    info = os.path.join(folder, "bench_outside-1.0.dist-info")
    os.makedirs(info, exist_ok=True)
    files = {
        os.path.join(info, "METADATA"): "Metadata-Version: 2.1\nName: bench-outside\nVersion: 1.0\n",
        os.path.join(info, "entry_points.txt"): "[opforge.accelerators]\noutside = bench_outside:OutsideAccelerator\n",
        os.path.join(folder, "bench_outside.py"): (
            "from opforge.accelerator.devices.cpu import CPUAccelerator\n\n\n"
            "class OutsideAccelerator(CPUAccelerator):\n"
            '    name = "outside"\n'
            "    interface_version = 1\n\n"
            "    def op_builder_dir(self):\n"
            '        return "opforge.builders.cpu"\n'
        ),
    }
    for path, text in files.items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    compileall.compile_dir(folder, quiet=1)  # as pip does when it installs
    return folder
