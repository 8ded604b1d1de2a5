"""When several processes want one cold op at once: how many build it, and how soon after that are all of them done?"""

from __future__ import annotations

from typing import Any

from .harness import Report
from .scratch import ChildError, Scratch, parse, too_long

CROWDS, LONG_CROWDS = {2: 2, 4: 2, 8: 1, 16: 1}, {32: 1, 64: 1}
"""Processes at once -> rounds."""
PROCESS_BYTES = 256 << 20
"""Memory that one process with torch in it may take: a crowd that would not fit is left out."""


def run(scratch: Scratch) -> Report:
    """All processes have imported everything and are let go together."""
    from opforge.accelerator.host.cgroup import memory_left

    report = Report(
        "N processes load CPUAdam at the same moment from one empty cache",
        "one build, and nobody later than it, with the builder's own return from `.load()` as its end; and what the "
        "loads of as many processes take that find the op built",
    )
    table = report.table("From the builder's end to the last process's", "s", statistics=("median", "worst"))
    whole = report.table("From the start to the last process's end", "s", statistics=("median", "worst"))
    hits = report.table("The same where the op is built already", "s", statistics=("median", "worst"))
    most_builds, latest = 0, 0.0
    for count, rounds in {**CROWDS, **LONG_CROWDS}.items():
        if count in LONG_CROWDS and not scratch.long:
            report.left_out.append(too_long(f"{count} processes"))
            continue
        if (left := memory_left()) is not None and left < count * PROCESS_BYTES:
            report.left_out.append(f"{count} processes: {left / 2**30:.1f} GiB of memory are left")
            continue
        tails, spans, builds = [], [], []
        for turn in range(rounds):
            cache = scratch.fresh("flight")
            found = _flight(scratch, count, cache)
            builders = [one for one in found if one["origin"] == "built"]
            tails.append(max(one["ended"] for one in found) - min(one["ended"] for one in builders or found))
            spans.append(_span(found))
            builds.append(len(builders))
            if turn == 0:
                hits.add(f"{count} processes", [_span(_flight(scratch, count, cache))])
        table.add(f"{count} processes", tails, f"builds: {', '.join(map(str, builds))}")
        whole.add(f"{count} processes", spans)
        most_builds, latest = max(most_builds, *builds), max(latest, *tails)
    report.figure("most builds of one op", most_builds, "", 1)
    report.figure("longest wait after the build", latest, "s", 0.5)
    return report


def _span(found: list[dict[str, Any]]) -> float:
    """Seconds from the first process's start to the last one's end."""
    return float(max(one["ended"] for one in found) - min(one["began"] for one in found))


def _flight(scratch: Scratch, count: int, cache: str) -> list[dict[str, Any]]:
    children = [scratch.start("child_flight", OPFORGE_CACHE_DIR=cache) for _ in range(count)]
    try:
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline().strip() != "ready":
                raise ChildError(f"a process did not come up: {child.communicate()[1]}")
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        found = []
        for child in children:
            printed, problems = child.communicate(timeout=300)
            found.append(parse("child_flight", child.returncode, printed, problems))
        return found
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()
