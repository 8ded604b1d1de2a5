"""How long from saving an edit of an op's source to the result of a call?"""

from __future__ import annotations

import statistics

from .harness import Report
from .scratch import Scratch

ROUNDS = 6
OURS, CEILING, EXTENSION = "opforge, stable ABI", "the compiler alone", "cpp_extension, pybind"


def run(scratch: Scratch) -> Report:
    """One process edits, loads and calls, as somebody at work does; the compiler alone is run by turns with it."""
    report = Report(
        "edit a source, load it, call it, in a running process",
        f"{CEILING}: one command of the C++ compiler that makes the same library from the same file",
    )
    source = scratch.path("edited", "stable_relu.cpp")
    found = scratch.child("child_edit", "ours", source, str(ROUNDS))
    table = report.table("From edit to result", "s", against=(OURS, CEILING))
    table.add(OURS, found["ours"])
    table.add(CEILING, found["compiler"], "ceiling")
    # It begins where the cold benchmark's build ended, if that has run.
    source = scratch.source("pybind_relu.cpp")
    rival = scratch.child("child_edit", "extension", source, scratch.extensions)
    table.add(EXTENSION, rival["extension"])
    report.figure("edit, compile, run", statistics.median(found["ours"]), "s", 2)
    return report
