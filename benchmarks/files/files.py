"""How fast are tensors moved to and from files, beside fio and DeepSpeed's aio_handle?"""

from __future__ import annotations

import shutil
import statistics
from typing import Any

from benchmarks.harness import Report
from benchmarks.scratch import DEEPSPEED, ChildError, Scratch

CHILD = "files.child_files"
FIO = ("fio io_uring", "fio libaio")
OURS, RIVAL = "opforge, locked memory", "DeepSpeed, locked memory"
AS_FIO = "opforge, 512 KiB of memory"
CASES = {
    "read 32": ("read, 1 MiB blocks, depth 32, O_DIRECT", "GB/s", 0.97),
    "read 128": ("read, 1 MiB blocks, depth 128, O_DIRECT", "GB/s", 0.97),
    "write 32": ("write, 1 MiB blocks, depth 32, O_DIRECT", "GB/s", 0.97),
    "write 128": ("write, 1 MiB blocks, depth 128, O_DIRECT", "GB/s", 0.97),
    "random": ("4 KiB random reads, depth 128, O_DIRECT", "1000/s", 0.95),
    "memory read": ("read, 1 MiB blocks, depth 32, tmpfs", "GB/s", 0.85),
    "memory write": ("write, 1 MiB blocks, depth 32, tmpfs", "GB/s", 0.85),
}


def run(scratch: Scratch) -> Report:
    """Returns each case with the median of the ratios of samples that were taken in one turn: a disk's speed drifts."""
    report = Report(
        "1 GiB (256 MiB in the tmpfs and without --long) between a file and a tensor",
        "the faster one of fio's engines io_uring and libaio, in the same turn",
    )
    if not shutil.which("fio"):
        report.left_out.append("all: fio is not installed (apt install fio)")
        return report
    for case, (title, unit, target) in CASES.items():
        try:
            samples: dict[str, Any] = scratch.run_child(
                CHILD, case, "long" if scratch.long else "short", scratch.deepspeed
            )
        except ChildError as error:
            report.left_out.append(f"{title}: {error}")
            continue
        processor = samples.pop("processor", {})
        table = report.table(title, unit, against=FIO, statistics=("median", "worst"))
        for name, values in samples.items():
            table.add(name, values, "ceiling" * name.startswith("fio"))
        ceiling = [max(pair) for pair in zip(*(samples[name] for name in FIO), strict=True)]
        ours = samples.get(AS_FIO, samples[OURS])
        report.figure(f"opforge, {title}", _ratio(ours, ceiling), "of fio's better engine", target, False)
        if RIVAL in samples:
            target = 1.1 if "read" in case else 1.0
            report.figure(f"opforge, {title}", _ratio(samples[OURS], samples[RIVAL]), "of DeepSpeed", target, False)
        if processor:
            report.figure(f"processor time, {title}", _ratio(*processor.values()), "of fio io_uring", 1.3)
    if not scratch.deepspeed:
        report.left_out.append(f"DeepSpeed: {DEEPSPEED} is not set")
    return report


def _ratio(samples: list[float], others: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(samples, others, strict=True))
