"""How fast is an AdamW step on two threads, beside torch's fused one, DeepSpeed's, a plain C loop and the memory?"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import Report, Table, ratio, scaled
from benchmarks.scratch import Scratch

PROCESSES = 2
"""Processes of each kind, in turns. How a process's pages lie in memory affects all of its samples alike."""
CHILD = "optimizers.child_adamw"
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
"""Case -> title, unit, factor from seconds, contenders, contenders in DeepSpeed's environment."""
Samples = dict[str, list[float]]
Result = dict[str, Any]
"""What a child prints: `samples` in seconds by contender, `traffic` and `low_traffic` in bytes."""


def run(scratch: Scratch) -> Report:
    """Runs each case in processes of its own. DeepSpeed is compared with the torch in its own environment."""
    report = Report(
        "one step, by the front ends, all in one process over the same memory and in turns",
        "the rule as a plain C loop over raw pointers (two threads started for it; one for the single tensor); and "
        "memory: a copy, and a change in place, that move as many bytes as a step must (28 an element in fp32)",
    )
    problem = scratch.deepspeed_problem()
    if problem:
        report.left_out.append(problem)
    for case, (title, unit, factor, contenders, rivals) in CASES.items():
        ours, rival = _run_children(scratch, case, contenders, () if problem else rivals)
        table = report.table(f"{title}, two threads", unit, against=(NAMES["fused"], NAMES["loop"]))
        _fill(table, ours, factor)
        if rival:
            table = report.table(f"{title}, DeepSpeed's environment", unit, against=(NAMES["fused"],))
            _fill(table, rival, factor)
        _add_figures(report, case, ours["samples"])
    _run_bf16(scratch, report, bool(problem))
    return report


def _run_children(
    scratch: Scratch, case: str, ours: tuple[str, ...], rivals: tuple[str, ...]
) -> tuple[Result, Result | None]:
    """Runs processes of both kinds in turns. Returns the samples of all processes of each kind together."""
    results: list[Result] = []
    rival_results: list[Result] = []
    for _ in range(PROCESSES):
        results.append(scratch.run_child(CHILD, case, *ours))
        if rivals:
            rival_results.append(scratch.run_child(CHILD, case, *rivals, python=scratch.deepspeed))
    return _merged(results), _merged(rival_results) if rival_results else None


def _merged(results: list[Result]) -> Result:
    samples: Samples = {name: [] for name in results[0]["samples"]}
    for result in results:
        for name, seconds in result["samples"].items():
            samples[name] += seconds
    return {**results[0], "samples": samples}


def _fill(table: Table, result: Result, factor: float) -> None:
    for name, samples in result["samples"].items():
        rate = _rate(result, name, "traffic") if result["traffic"] > 1 << 20 else ""
        table.add(NAMES[name], scaled(samples, factor), ", ".join(filter(None, [rate, "ceiling" * (name in CEILINGS)])))


def _add_figures(report: Report, case: str, samples: Samples) -> None:
    ours = samples["ours"]
    of_fused = ratio(ours, samples["fused"])
    if case == "large":
        # The ratio of bandwidths is the inverse of the ratio of times.
        bandwidth = ratio(samples["loop"], ours)
        report.figure("64 Mi: bandwidth", bandwidth, "of the C loop's", 0.98, at_most=False)
        report.figure("64 Mi: time", of_fused, "of torch fused", 1.0)
    elif case == "list":
        report.figure("1000 x 1000: time", of_fused, "of torch fused", 0.5)
    else:
        report.figure("one tensor of 1000: time", of_fused, "of torch fused", 1.0)


def _run_bf16(scratch: Scratch, report: Report, without_rival: bool) -> None:
    """Measures bf16 parameters with fp32 states. The baseline is the fp32 step of torch's fused AdamW."""
    contenders, rivals = ("ours:bf16", "fused", "in-place"), ("deepspeed:bf16", "fused")
    ours, rival = _run_children(scratch, "large", contenders, () if without_rival else rivals)
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
        of_fused = ratio(samples["ours:bf16"], samples["fused"])
        rival_of_fused = ratio(rival["samples"][name], rival["samples"]["fused"])
        report.figure(
            "bf16 parameters: time, each beside torch fused", of_fused / rival_of_fused, "of DeepSpeed's", 1.0
        )


def _rate(result: Result, name: str, traffic: str) -> str:
    """Returns the bandwidth of the median sample, in words."""
    samples = sorted(result["samples"][name])
    return f"{result[traffic] / samples[len(samples) // 2] / 1e9:.1f} GB/s"
