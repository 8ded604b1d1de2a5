"""How fast is an AdamW step on two threads, beside torch's fused one, DeepSpeed's, a plain C loop and the memory?"""

from __future__ import annotations

from typing import Any

from .harness import Report, Table, ratio, scaled
from .scratch import Scratch

PROCESSES = 2
"""Processes of each kind, by turns: a process keeps its luck with pages as long as it lives."""
FUSED = "fused"
NAMES = {
    "ours": "opforge CPUAdam",
    "ours:bf16": "opforge CPUAdam, bf16 parameters",
    "fused": "torch AdamW(fused)",
    "deepspeed": "DeepSpeedCPUAdam",
    "deepspeed:bf16": "DeepSpeedCPUAdam, bf16 parameters",
    "loop": "C loop",
    "loop-1": "C loop, one thread",
    "copy": "copy",
    "in-place": "in place",
}
CEILINGS = ("loop", "loop-1", "copy", "in-place")
CASES = {
    "large": ("64 Mi elements, fp32", "ms", 1e3, ("ours", "fused", "loop", "copy", "in-place"), ("fused", "deepspeed")),
    "list": ("1000 tensors of 1000, fp32", "ms", 1e3, ("ours", "fused", "loop", "copy"), ("fused", "deepspeed")),
    "single": ("one tensor of 1000, fp32", "us", 1e6, ("ours", "fused", "loop-1"), ("fused", "deepspeed")),
}
Samples = dict[str, list[float]]


def run(scratch: Scratch) -> Report:
    """Each case in processes of its own. DeepSpeed has another environment: it is compared with the torch beside it."""
    report = Report(
        "one step, by the front ends, all in one process over the same memory and by turns",
        "the rule as a plain C loop over raw pointers (two threads started for it; one for the single tensor); and "
        "memory: a copy, and a change in place, that move as many bytes as a step must (28 an element in fp32)",
    )
    problem = scratch.no_deepspeed()
    if problem:
        report.left_out.append(problem)
    for case, (title, unit, factor, contenders, rivals) in CASES.items():
        found, rival = _turns(scratch, case, contenders, () if problem else rivals)
        table = report.table(f"{title}, two threads", unit, against=(NAMES["fused"], NAMES["loop"]))
        _fill(table, found["samples"], factor, found["traffic"])
        if rival:
            _fill_rival(report, f"{title}, DeepSpeed's environment", unit, factor, rival)
        _judge(report, case, found["samples"])
    _low(scratch, report, bool(problem))
    return report


def _turns(scratch: Scratch, case: str, ours: tuple[str, ...], rivals: tuple[str, ...]) -> tuple[Any, Any]:
    """Processes by turns; gives the samples of all processes of each kind together."""
    found: list[dict[str, Any]] = []
    rival: list[dict[str, Any]] = []
    for _ in range(PROCESSES):
        found.append(scratch.child("child_adamw", case, *ours))
        if rivals:
            rival.append(scratch.child("child_adamw", case, *rivals, python=scratch.deepspeed))
    return _together(found), _together(rival) if rival else None


def _together(found: list[dict[str, Any]]) -> dict[str, Any]:
    names = found[0]["samples"]
    return {**found[0], "samples": {name: [spent for one in found for spent in one["samples"][name]] for name in names}}


def _fill(table: Table, samples: Samples, factor: float, traffic: int) -> None:
    for name, spent in samples.items():
        rate = f"{traffic / sorted(spent)[len(spent) // 2] / 1e9:.1f} GB/s" if traffic > 1 << 20 else ""
        table.add(NAMES[name], scaled(spent, factor), ", ".join(filter(None, [rate, "ceiling" * (name in CEILINGS)])))


def _fill_rival(report: Report, title: str, unit: str, factor: float, found: dict[str, Any]) -> None:
    table = report.table(title, unit, against=(NAMES["fused"],))
    _fill(table, found["samples"], factor, found["traffic"])


def _judge(report: Report, case: str, samples: Samples) -> None:
    ours = samples["ours"]
    beside = ratio(ours, samples["fused"])
    if case == "large":
        # A bandwidth is a time upside down.
        bandwidth = ratio(samples["loop"], ours)
        report.figure("64 Mi: bandwidth", bandwidth, "of the C loop's", 0.98, at_most=False)
        report.figure("64 Mi: time", beside, "of torch fused", 1.0)
    elif case == "list":
        report.figure("1000 x 1000: time", beside, "of torch fused", 0.5)
    else:
        report.figure("one tensor of 1000: time", beside, "of torch fused", 1.0)


def _low(scratch: Scratch, report: Report, alone: bool) -> None:
    """bf16 parameters with fp32 states: torch's fused AdamW has no such step; its fp32 one is the measure of both."""
    ours, rival = _turns(
        scratch, "large", ("ours:bf16", "fused", "in-place"), () if alone else ("deepspeed:bf16", "fused")
    )
    title = "64 Mi elements, bf16 parameters and gradients, fp32 states, two threads"
    table = report.table(title, "ms", against=(NAMES["fused"],))
    samples = ours["samples"]
    table.add(NAMES["ours:bf16"], scaled(samples["ours:bf16"], 1e3), _rate(ours, "ours:bf16", "low_traffic"))
    table.add(NAMES["fused"], scaled(samples["fused"], 1e3), "fp32, " + _rate(ours, "fused", "traffic"))
    table.add(
        NAMES["in-place"], scaled(samples["in-place"], 1e3), "fp32's bytes, " + _rate(ours, "in-place", "traffic")
    )
    if rival:
        table = report.table(title + ", DeepSpeed's environment", "ms", against=(NAMES["fused"],))
        name = "deepspeed:bf16"
        table.add(NAMES[name], scaled(rival["samples"][name], 1e3), _rate(rival, name, "low_traffic"))
        table.add(NAMES["fused"], scaled(rival["samples"]["fused"], 1e3), "fp32, " + _rate(rival, "fused", "traffic"))
        here = ratio(samples["ours:bf16"], samples["fused"])
        there = ratio(rival["samples"][name], rival["samples"]["fused"])
        report.figure("bf16 parameters: time, each beside torch fused", here / there, "of DeepSpeed's", 1.0)


def _rate(found: dict[str, Any], name: str, traffic: str) -> str:
    spent = sorted(found["samples"][name])
    return f"{found[traffic] / spent[len(spent) // 2] / 1e9:.1f} GB/s"
