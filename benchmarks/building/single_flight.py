"""When several processes load one cold op at once: how many build it, and how soon after the build are all done?"""

from __future__ import annotations

from typing import Any

from benchmarks.scratch import ChildError, Scratch, only_when_long, parse_output
from opforge.bench.harness import Report

CROWDS, LONG_CROWDS = {2: 2, 4: 2, 8: 1, 16: 1}, {32: 1, 64: 1}
"""Processes at once -> rounds."""
PROCESS_BYTES = 256 << 20
"""Memory that one process with torch may take. Numbers of processes that would not fit are left out."""
CHILD = "building.child_flight"


def run(scratch: Scratch) -> Report:
    """Starts to load at the same moment in all processes, after each has imported everything."""
    from opforge.accelerator.host.cgroup import memory_left

    report = Report(
        "N processes load CPUAdam at the same moment from one empty cache",
        "one build, and no process done later than the builder, whose end is its own return from `.load()`; and the "
        "loads of as many processes when the op is built already",
    )
    table = report.table("From the builder's end to the last process's", "s", statistics=("median", "worst"))
    whole = report.table("From the start to the last process's end", "s", statistics=("median", "worst"))
    hits = report.table("The same when the op is built already", "s", statistics=("median", "worst"))
    most_builds, latest = 0, 0.0
    for count, rounds in {**CROWDS, **LONG_CROWDS}.items():
        if count in LONG_CROWDS and not scratch.long:
            report.left_out.append(only_when_long(f"{count} processes"))
            continue
        if (left := memory_left()) is not None and left < count * PROCESS_BYTES:
            report.left_out.append(f"{count} processes: {left / 2**30:.1f} GiB of memory are left")
            continue
        tails, spans, builds = [], [], []
        for turn in range(rounds):
            cache = scratch.new_folder("flight")
            loads = _load_at_once(scratch, count, cache)
            builders = [load for load in loads if load["origin"] == "built"]
            tails.append(max(load["ended"] for load in loads) - min(load["ended"] for load in builders or loads))
            spans.append(_span(loads))
            builds.append(len(builders))
            if turn == 0:
                hits.add(f"{count} processes", [_span(_load_at_once(scratch, count, cache))])
        table.add(f"{count} processes", tails, f"builds: {', '.join(map(str, builds))}")
        whole.add(f"{count} processes", spans)
        most_builds, latest = max(most_builds, *builds), max(latest, *tails)
    report.figure("most builds of one op", most_builds, "", 1)
    report.figure("longest wait after the build", latest, "s", 0.5)
    return report


def _span(loads: list[dict[str, Any]]) -> float:
    """Returns the seconds from the first process's start to the last one's end."""
    return float(max(load["ended"] for load in loads) - min(load["began"] for load in loads))


def _load_at_once(scratch: Scratch, count: int, cache: str) -> list[dict[str, Any]]:
    """Returns what each of `count` processes printed about its load."""
    children = [scratch.start_child(CHILD, OPFORGE_CACHE_DIR=cache) for _ in range(count)]
    try:
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline().strip() != "ready":
                raise ChildError(f"a process did not start: {child.communicate()[1]}")
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        loads = []
        for child in children:
            output, errors = child.communicate(timeout=300)
            loads.append(parse_output(CHILD, child.returncode, output, errors))
        return loads
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()
