"""How long does a `.load()` from a remote on this machine take, and how often is an op built in a cluster?"""

from __future__ import annotations

import glob
import os
import shutil
import statistics
import subprocess

from benchmarks.scratch import Scratch, parse_output, served
from opforge.bench.harness import Report, ratio, scaled

RAW = "floor.so"
"""The library as it is, in the folder that is served."""
ROUNDS, NODES, RANKS, LONG_RANKS = 7, 4, 8, 64
CHILD = "store.child_remote"
SOURCE = r"""
extern "C" __attribute__((visibility("default"))) int value() { return 1; }
asm(".pushsection .rodata\n .set x, 1\n .rept 131072\n"
    ".set x, x * 6364136223846793005 + 1442695040888963407\n .quad x ^ (x >> 29)\n .endr\n .popsection");
"""
"""1 MB that does not compress. It is no file beside the source, which would be hashed with the op's own files."""
SLOW = "".join(
    f"template <int N> struct T{n} {{ static long f() {{ return T{n}<N - 1>::f() + N; }} }};"
    f" template <> struct T{n}<0> {{ static long f() {{ return 0; }} }}; long g{n}() {{ return T{n}<800>::f(); }}\n"
    for n in range(8)
)


def run(scratch: Scratch) -> Report:
    """Measures hits and misses over HTTP in fresh processes, then a node with many ranks, then a cluster."""
    report = Report(
        "one `.load()` in a fresh process with an empty cache, after `import torch` and opforge's own import: the op"
        " of 1 MB is fetched from a server on this machine, verified, unpacked and loaded",
        "floor: one bare GET of the library, its SHA-256, and dlopen, in a fresh process; miss: one further question"
        " for an op that the remote does not have, in a process that has asked before",
    )
    folder, base = scratch.new_folder("remote"), scratch.new_folder("remote-op")
    with open(os.path.join(base, "plain.cpp"), "w", encoding="utf-8") as source:
        source.write(SOURCE)
    settings = {"BENCH_OP": base, "OPFORGE_REMOTES": ""}
    settings |= {name: scratch.new_folder(name) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    scratch.run_child(CHILD, "key", **settings)
    scratch.run_child(CHILD, "push", f"file://{folder}", **settings, OPFORGE_CACHE_DIR=scratch.new_folder("builder"))
    (library,) = glob.glob(os.path.join(scratch.folder, "**", "v2", "entries", "*", "plain*.so"), recursive=True)
    shutil.copyfile(library, os.path.join(folder, RAW))
    with served(folder) as remote:
        _measure(scratch, report, {**settings, "OPFORGE_REMOTES": remote, "OPFORGE_PREBUILT": "require"})
    _cluster(scratch, report, settings)
    return report


def _measure(scratch: Scratch, report: Report, settings: dict[str, str]) -> None:
    samples: dict[str, list[float]] = {"floor": [], "fetch": [], "miss": []}
    memory, resident = [], []
    for turn in range(-1, ROUNDS):
        for kind, times in samples.items():
            fresh = {"OPFORGE_CACHE_DIR": scratch.new_folder(kind), "XDG_CACHE_HOME": scratch.new_folder("memory")}
            arguments = [f"{settings['OPFORGE_REMOTES']}/{RAW}"] if kind == "floor" else []
            load = scratch.run_child(CHILD, kind, *arguments, **settings, **fresh)
            if turn >= 0:
                times.append(load["load"])
                memory.append(load["memory"])
                resident.append(load["resident"])
    table = report.table("Load", "ms")
    for kind, times in samples.items():
        table.add(kind, scaled(times, 1e3))
    report.figure("fetch, verify, unpack, load 1 MB", ratio(samples["fetch"], samples["floor"]), "times the floor", 3)
    fresh = {"OPFORGE_CACHE_DIR": scratch.new_folder("parts"), "XDG_CACHE_HOME": scratch.new_folder("memory")}
    where = scratch.run_child(CHILD, "parts", **settings, **fresh)
    for part in ("imports", "requests"):
        report.figure(f"{part} of such a load", where[part] * 1e3, "ms")
    report.figure("the rest of it", (where["load"] - where["imports"] - where["requests"]) * 1e3, "ms")
    report.figure("fetch, verify, unpack, load 1 MB", statistics.median(samples["fetch"]) * 1e3, "ms", 50)
    report.figure("miss", statistics.median(samples["miss"]) * 1e3, "ms", 5)
    report.figure("memory of that above the library's size", max(memory) / 2**20 - 1, "MB", 4)
    report.figure("the same with the pages of mapped files", max(resident) / 2**20 - 1, "MB")
    fresh = {"OPFORGE_CACHE_DIR": scratch.new_folder("ranks"), "XDG_CACHE_HOME": scratch.new_folder("memory")}
    log = scratch.path("ranks.log")
    number = LONG_RANKS if scratch.long else RANKS
    _end([_start(scratch, {**settings, **fresh, "OPFORGE_LOG": log}) for _rank in range(number)])
    report.figure(f"downloads for {number} processes of one node", _count(log, "fetch"), "downloads", 1)


def _cluster(scratch: Scratch, report: Report, settings: dict[str, str]) -> None:
    """Loads one cold op on several nodes at once, which publish what they build."""
    folder, base, log = scratch.new_folder("cluster"), scratch.new_folder("cluster-op"), scratch.path("cluster.log")
    with open(os.path.join(base, "plain.cpp"), "w", encoding="utf-8") as source:
        source.write(SOURCE.partition("asm")[0] + SLOW)
    shared = {**settings, "BENCH_OP": base, "OPFORGE_LOG": log, "OPFORGE_REMOTES": f"file://{folder}?push=1"}
    nodes = []
    for number in range(NODES):
        fresh = {"OPFORGE_CACHE_DIR": scratch.new_folder("node"), "XDG_CACHE_HOME": scratch.new_folder("memory")}
        nodes.append(_start(scratch, {**shared, **fresh, "BENCH_NODE": str(number)}))
    ends = [load["end"] for load in _end(nodes)]
    report.figure(f"builds of one cold op on {NODES} nodes", _count(log, "build"), "builds", 1)
    report.figure("until the last node has it, after the first", max(ends) - min(ends), "s", 2)


def _start(scratch: Scratch, settings: dict[str, str]) -> subprocess.Popen[str]:
    return scratch.start_child(CHILD, "fetch", **settings)


def _end(processes: list[subprocess.Popen[str]]) -> list[dict[str, float]]:
    results = []
    for process in processes:
        out, err = process.communicate(timeout=300)
        results.append(parse_output("child_remote", process.returncode, out, err))
    return results


def _count(log: str, event: str) -> int:
    with open(log, encoding="utf-8") as file:
        return sum(f'"event": "{event}"' in line for line in file)
