"""How long does it take from saving an edit of an op's source to the result of a call?"""

from __future__ import annotations

import statistics

from benchmarks.scratch import Scratch
from opforge.bench.harness import Report

ROUNDS = 6
OURS, CEILING, EXTENSION = "opforge, stable ABI", "the compiler alone", "cpp_extension, pybind"
FACADE = "opforge, cpp_extension's source"
CHILD = "building.child_edit"


def run(scratch: Scratch) -> Report:
    """Edits, loads and calls in one process, as a developer does, in turns with the compiler alone."""
    report = Report(
        "edit a source, load it, call it, in a running process",
        f"{CEILING}: one command of the C++ compiler that makes the same library from the same file",
    )
    # A store for each: the benchmarks before may have kept the header.
    stores = {kind: scratch.new_folder(f"{kind}-store") for kind in ("ours", "facade")}
    source, rounds = scratch.path("edited", "stable_relu.cpp"), str(ROUNDS)
    samples = scratch.run_child(CHILD, "ours", source, rounds, OPFORGE_CACHE_DIR=stores["ours"])
    table = report.table("From edit to result", "s", against=(OURS, CEILING))
    table.add(OURS, samples["edits"])
    table.add(CEILING, samples["compiler"], "ceiling")
    # Starts from the build of cold_load, if that has run.
    source = scratch.source("pybind_relu.cpp")
    rival = scratch.run_child(CHILD, "extension", source, scratch.extensions)
    table.add(EXTENSION, rival["extension"])
    source = scratch.path("edited", "pybind_relu.cpp")
    facade = scratch.run_child(CHILD, "facade", source, rounds, OPFORGE_CACHE_DIR=stores["facade"])
    table.add(FACADE, facade["edits"])
    edits = statistics.median(facade["edits"])
    report.figure("edit, compile, run", statistics.median(samples["edits"]), "s", 2)
    report.figure("the same of an unmodified extension", edits / rival["extension"][0], "of cpp_extension's time")
    for contender, of in ((OURS, samples), (FACADE, facade)):
        made = f"its first build takes {of['first'][0]:.1f} s, and the edit that makes the precompiled header"
        report.notes.append(f"{contender}: {made} {of['header'][0]:.1f} s")
    return report
