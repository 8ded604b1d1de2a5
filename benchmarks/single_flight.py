"""When several processes want one cold op at once: how many build it, and how soon after that are all of them done?"""

from __future__ import annotations

from typing import Any

from .harness import Report
from .scratch import ChildError, Scratch, parse

CROWDS = {2: 2, 4: 2, 8: 1}
"""Processes at once -> rounds."""


def run(scratch: Scratch) -> Report:
    """All processes have imported everything and are let go together."""
    report = Report(
        "N processes load CPUAdam at the same moment from one empty cache",
        "one build, and nobody later than it; its end is taken as the builder's own return from `.load()`",
    )
    table = report.table("From the builder's end to the last process's", "s", statistics=("median", "worst"))
    whole = report.table("From the start to the last process's end", "s", statistics=("median", "worst"))
    most_builds, latest = 0, 0.0
    for count, rounds in CROWDS.items():
        tails, spans, builds = [], [], []
        for _ in range(rounds):
            found = _flight(scratch, count)
            builders = [one for one in found if one["origin"] == "built"]
            last = max(one["ended"] for one in found)
            tails.append(last - min(one["ended"] for one in builders or found))
            spans.append(last - min(one["began"] for one in found))
            builds.append(len(builders))
        table.add(f"{count} processes", tails, f"builds: {', '.join(map(str, builds))}")
        whole.add(f"{count} processes", spans)
        most_builds, latest = max(most_builds, *builds), max(latest, *tails)
    report.figure("most builds of one op", most_builds, "", 1)
    report.figure("longest wait after the build", latest, "s", 0.5)
    return report


def _flight(scratch: Scratch, count: int) -> list[dict[str, Any]]:
    cache = scratch.fresh("flight")
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
