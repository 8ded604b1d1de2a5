"""What do `import opforge`, `opforge --help` and `opforge ls` cost as whole processes?"""

from __future__ import annotations

import statistics
import sys

from benchmarks.scratch import ChildError, Scratch
from opforge.bench.harness import Report, ratio, scaled

ROUNDS, WARMUP = 24, 2
SLOW_ROUNDS = 3
"""Rounds of the imports that take seconds."""
CEILING, IMPORT, HELP, LIST = "python -c pass", "import opforge", "opforge --help", "opforge ls"
TIMED_IMPORT = "import time; began = time.process_time(); import opforge; print(time.process_time() - began)"
UNWANTED = "torch filelock platformdirs click rich importlib.metadata"


def run(scratch: Scratch) -> Report:
    """Runs whole processes in turns, as a user's shell starts them."""
    report = Report(
        "processes from start to end, their byte code compiled", f"{CEILING}: an interpreter that does nothing"
    )
    script = scratch.script("opforge")
    commands = {
        CEILING: [sys.executable, "-c", "pass"],
        IMPORT: [sys.executable, "-c", "import opforge"],
        HELP: [script, "--help"],
        LIST: [script, "ls"],
    }
    slow: dict[str, list[str]] = {}
    if problem := scratch.deepspeed_problem():
        report.left_out.append(problem)
    else:
        slow["import torch (DeepSpeed's environment)"] = [scratch.deepspeed, "-c", "import torch"]
        slow["import deepspeed, its builders"] = [scratch.deepspeed, "-c", "import deepspeed.ops.op_builder"]
    for name, command in list(commands.items()):
        try:
            scratch.time_command(command)
        except (ChildError, OSError) as error:
            report.left_out.append(f"{name}: {error}")
            del commands[name]
    samples: dict[str, list[float]] = {}
    processor: list[float] = []
    for turn in range(-WARMUP, ROUNDS):
        for name, command in (commands | slow if turn < SLOW_ROUNDS else commands).items():
            seconds = scratch.time_command(command)
            if turn >= 0:
                samples.setdefault(name, []).append(seconds)
        seconds = float(scratch.output([sys.executable, "-c", TIMED_IMPORT]))
        if turn >= 0:
            processor.append(seconds)
    table = report.table("Whole processes", "ms", against=(CEILING,))
    for name, times in samples.items():
        table.add(name, scaled(times, 1e3), "ceiling" if name == CEILING else "")
    report.table("Processor time", "ms").add(IMPORT, scaled(processor, 1e3))
    for name, value in (("minimum", min(processor)), ("median", statistics.median(processor))):
        report.figure(f"{IMPORT}, without torch, processor time, {name}", value * 1e3, "ms", 1.5)
    for name in (HELP, LIST):
        if name in samples:
            report.figure(name, statistics.median(samples[name]) * 1e3, "ms", 100)
            report.notes.append(f"{name} takes {ratio(samples[name], samples[CEILING]):.1f} bare interpreters")
    code = f"import sys, opforge; print(*(name for name in {UNWANTED.split()} if name in sys.modules))"
    imported = scratch.output([sys.executable, "-c", code])
    report.notes.append(f"of {', '.join(UNWANTED.split())} it imports: {imported or 'none'}")
    return report
