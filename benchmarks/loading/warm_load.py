"""How long does `.load()` take in a fresh process when the op is in the cache?"""

from __future__ import annotations

import compileall
import os
import statistics
import sys
import time
from typing import Any

from benchmarks.loading.load_sources import WHEEL_BUILDER, copied_store, wheel_site
from benchmarks.packages import kernel_packages
from benchmarks.scratch import ChildError, Scratch
from opforge.bench.harness import Report, ratio, scaled

ROUNDS = 24
OURS, OUTSIDE, TORCH_ABI = "opforge CPUAdam", "opforge CPUAdam, accelerator of another package", "opforge, torch ABI"
STABLE_LOAD = "opforge.load, stable ABI"
EXTENSION, DEEPSPEED = "cpp_extension", "DeepSpeed CPUAdam"
HIT = "opforge CPUAdam, the load alone"
MODULES = tuple(f"opforge.{name}" for name in ("accelerator.select", "builders.cpu.adam"))
"""What a hit imports. With these imported before, what is left is the load."""
JIT_MODULES = ("opforge.builders.jit_builders",)
"""What a first call of `opforge.load` imports besides, if its op is remembered."""
LAYER, WHEEL, COPIED = f"{HIT}, from a layer", f"{HIT}, from a wheel", f"{HIT}, from a copied store"
JIT = f"{STABLE_LOAD}, the load alone"
KERNEL = "opforge, get_kernel of an installed package"
FLOOR = "torch.ops.load_library"
PROCESSOR = (FLOOR, OURS, HIT, LAYER, WHEEL, COPIED, KERNEL, STABLE_LOAD, JIT, TORCH_ABI)
"""Those whose processor time has a goal."""
CHILD = "loading.child_load"
Loads = dict[str, list[dict[str, Any]]]
"""Contender -> what each of its processes printed."""


def run(scratch: Scratch) -> Report:
    """Runs contenders in turns, in one fresh process each. The first two rounds, which may build, are not counted."""
    report = Report(
        "one `.load()` of a cached op in a fresh process, after `import torch` and the package's own import",
        f"{FLOOR}: the library that opforge built, opened by torch with no look-up and no check",
    )
    library = scratch.run_child(CHILD, "ours", "CPUAdamBuilder")["path"]
    outside = os.pathsep.join(filter(None, [outside_package(scratch), os.environ.get("PYTHONPATH", "")]))
    contenders: dict[str, tuple[tuple[str, ...], str, dict[str, str]]] = {
        FLOOR: (("floor", library), sys.executable, {}),
        OURS: (("ours", "CPUAdamBuilder"), sys.executable, {}),
        HIT: (("ours", "CPUAdamBuilder", *MODULES), sys.executable, {}),
        **_sources(scratch),
        KERNEL: (("ours", kernel_packages.NAME), sys.executable, _kernel(scratch)),
        OUTSIDE: (("ours", "CPUAdamBuilder"), sys.executable, {"PYTHONPATH": outside}),
        TORCH_ABI: (("ours-torch", scratch.source("pybind_relu.cpp")), sys.executable, {}),
        STABLE_LOAD: (("ours-source", scratch.source("stable_relu.cpp")), sys.executable, {}),
        JIT: (("ours-source", scratch.source("stable_relu.cpp"), *JIT_MODULES), sys.executable, {}),
        EXTENSION: (("extension", scratch.source("pybind_relu.cpp"), scratch.extensions), sys.executable, {}),
    }
    if problem := scratch.deepspeed_problem():
        report.left_out.append(problem)
    else:
        contenders[DEEPSPEED] = (("deepspeed",), scratch.deepspeed, {})
    loads: Loads = {name: [] for name in contenders}
    for turn in range(-2, ROUNDS):
        if turn == -1:
            time.sleep(
                2.1
            )  # files changed in the last two seconds are hashed again; the round after that is a plain hit
        for name, (arguments, python, settings) in contenders.items():
            child = kernel_packages.CHILD if name == KERNEL else CHILD
            load = scratch.run_child(child, *arguments, python=python, **settings)
            if turn >= 0:
                loads[name].append(load)
    accelerators = {load["accelerator"] for load in loads[OUTSIDE]}
    if accelerators != {"OutsideAccelerator"}:
        raise ChildError(f"{accelerators} was chosen, expected OutsideAccelerator")
    _add_tables(report, loads)
    _add_figures(report, loads)
    return report


def _add_tables(report: Report, loads: Loads) -> None:
    table = report.table("Load", "ms", against=(OURS, FLOOR))
    imports = report.table("Import before it, after torch", "ms")
    again = report.table("A further load in the process", "us", against=(OURS,))
    both = report.table("Processor time of the import and the load", "ms", against=(FLOOR,))
    for name, samples in loads.items():
        both.add(name, scaled((load["first"] for load in samples if "first" in load), 1e3))
        table.add(name, scaled((load["load"] for load in samples), 1e3))
        if any(load.get("import") for load in samples):
            imports.add(name, scaled((load["import"] for load in samples), 1e3))
        again.add(name, scaled((load["again"] for load in samples if "again" in load), 1e6))


def _add_figures(report: Report, loads: Loads) -> None:
    times = {name: [load["load"] for load in samples] for name, samples in loads.items()}
    firsts = {
        name: [load["import"] + load["load"] for load in loads[name]] for name in (OURS, OUTSIDE, TORCH_ABI, EXTENSION)
    }
    report.figure("import and load, accelerator of another package", statistics.median(firsts[OUTSIDE]) * 1e3, "ms", 10)
    report.figure("import and load, torch ABI", statistics.median(firsts[TORCH_ABI]) * 1e3, "ms", 18)
    report.figure("cpp_extension's hit", ratio(firsts[EXTENSION], firsts[OURS]), "times opforge's", 5, at_most=False)
    if DEEPSPEED in times:
        report.figure("DeepSpeed's warm load", ratio(times[DEEPSPEED], times[OURS]), "times opforge's", 1000, False)
    _add_processor_times(report, {name: [load["first"] for load in loads[name]] for name in PROCESSOR})
    report.notes.append(f"the first load has imported {loads[OURS][0]['modules']} modules of opforge's")
    for name, what in ((OURS, "a further load in the process"), (TORCH_ABI, "a further opforge.load")):
        watched = loads[name][0]["watched"]
        again = _median(loads[name], "again") * 1e6
        report.figure(f"{what}, which compares {watched} files and folders", again, "us", 5 + 3 * watched)
    ours = [load for name in (OURS, OUTSIDE, TORCH_ABI) for load in loads[name]]
    unwanted = sorted({name for load in ours for name in load["unwanted"]})
    report.notes.append(f"opforge's Python came {', '.join(sorted({load['byte_code'] for load in ours}))}")
    report.notes.append(f"of the modules that no hit should import, it imported: {', '.join(unwanted) or 'none'}")


def _add_processor_times(report: Report, times: dict[str, list[float]]) -> None:
    for kind, of in (("minimum", min), ("median", statistics.median)):
        value: dict[str, float] = {name: of(samples) for name, samples in times.items()}
        where = f"processor time, {kind}"
        report.figure(f"(a) import and first load, after torch, {where}", value[OURS] * 1e3, "ms", 5)
        report.figure(f"(b) the hit alone, {where}", value[HIT] / value[FLOOR], f"times {FLOOR}", 3.3)
        for name in (LAYER, WHEEL, COPIED):
            report.figure(f"{name}, {where}", value[name] / value[HIT], "times (b)", 1.2)
        report.figure(f"import and {KERNEL}, after torch, {where}", value[KERNEL] * 1e3, "ms", 4)
        report.figure(f"import and {STABLE_LOAD}, after torch, {where}", value[STABLE_LOAD] * 1e3, "ms", 6)
        report.figure(f"{JIT}, {where}", value[JIT] / value[FLOOR], f"times {FLOOR}", 5)
        report.figure(f"import and {TORCH_ABI}, after torch, {where}", value[TORCH_ABI] * 1e3, "ms", 12)


def _sources(scratch: Scratch) -> dict[str, tuple[tuple[str, ...], str, dict[str, str]]]:
    """Returns the contenders that load the same op from elsewhere, with all modules imported before."""
    site, empty = wheel_site(scratch), scratch.new_folder("empty")
    layer = os.path.join(site, "bench_wheel", "_opforge_ops")
    path = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH", "")]))
    ours = ("ours", "CPUAdamBuilder", *MODULES)
    return {
        LAYER: (ours, sys.executable, {"OPFORGE_CACHE_DIR": empty, "OPFORGE_CACHE_LAYERS": layer}),
        WHEEL: (
            ("ours-class", WHEEL_BUILDER, *MODULES),
            sys.executable,
            {"OPFORGE_CACHE_DIR": empty, "PYTHONPATH": path},
        ),
        COPIED: (ours, sys.executable, {"OPFORGE_CACHE_DIR": copied_store(scratch)}),
    }


def _kernel(scratch: Scratch) -> dict[str, str]:
    _registry, installed = kernel_packages.installed_package(scratch)
    return {"OPFORGE_KERNEL_PATH": installed}


def _median(loads: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(load[name] for load in loads))


def outside_package(scratch: Scratch) -> str:
    """Returns a folder for PYTHONPATH in which a package that adds an accelerator is installed."""
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
