"""From how many units that include torch's headers does a precompiled header pay, including the time to make it?"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.commands import NAME, Elapsed, build_steps, empty_store, make_builder, run_with_ninja, write_unit
from benchmarks.scratch import Scratch, only_when_long
from opforge.bench.harness import Report
from opforge.bench.machine import cores

if TYPE_CHECKING:
    from opforge.builders.declaration.build_plan import Step

PLAIN, HEADER_FIRST, CEILING = "without", "with, made first", "with, made before"
UNITS: dict[str, tuple[str, tuple[int, ...], int]] = {
    "torch-stable": ("stable_relu.cpp", (1, 2, 4, 8), 3),
    "torch": ("pybind_relu.cpp", (1, 2, 4), 1),
}
"""ABI -> the op in csrc/ that all units are copies of, the numbers of units, and the rounds."""
LONG_ABIS = ("torch",)
"""20 to 35 s a unit."""
Samples = dict[tuple[str, int], list[Elapsed]]
"""(contender, number of units) -> the samples."""


def run(scratch: Scratch) -> Report:
    """Runs the commands of opforge's own builds with ninja alone, on all cores. Nothing is linked."""
    report = Report(
        f"{NAME}'s units with the same commands, with and without a precompiled header of what they include",
        f"{CEILING}: the units alone, as if another op had paid for the header",
    )
    for abi, (template, counts, rounds) in UNITS.items():
        if abi in LONG_ABIS and not scratch.long:
            report.left_out.append(only_when_long(f"{abi} ABI"))
            continue
        samples = _measure(scratch, abi, template, counts, rounds)
        for what, field in (("wall time", "wall"), ("CPU time", "cpu")):
            seconds = {key: [getattr(sample, field) for sample in values] for key, values in samples.items()}
            _add_results(report, abi, what, counts, seconds)
    report.notes.append(f"up to {cores()} compilers at once: while the header is made, the others wait")
    return report


def _measure(scratch: Scratch, abi: str, template: str, counts: Sequence[int], rounds: int) -> Samples:
    sources = scratch.new_folder("units")
    names = [write_unit(template, sources, number) for number in range(max(counts))]
    steps = build_steps(make_builder(NAME, sources, names, abi), empty_store(scratch.new_folder("store")))
    compiling = [step for step in steps if step.unit]
    header = os.path.join(sources, "all.h")
    with open(os.path.join(sources, names[0]), encoding="utf-8") as file:
        includes = [line for line in file if line.startswith("#include")]
    with open(header, "w", encoding="utf-8") as file:
        file.writelines(includes)
    making, using = precompiled(compiling, header)
    samples: Samples = {}
    for _ in range(rounds):
        for count in counts:
            plain, units = compiling[:count], using[:count]
            folder = scratch.new_folder("units")
            samples.setdefault((PLAIN, count), []).append(run_with_ninja(folder, plain))
            for step in plain:
                os.unlink(os.path.join(folder, step.output))
            # A compiler that does not use the precompiled header reads this file instead, and fails.
            with open(os.path.join(folder, "used.h"), "w", encoding="utf-8") as file:
                file.write('#error "the precompiled header was not used"\n')
            samples.setdefault((HEADER_FIRST, count), []).append(run_with_ninja(folder, [making, *units]))
            for step in units:
                os.unlink(os.path.join(folder, step.output))
            samples.setdefault((CEILING, count), []).append(run_with_ninja(folder, units))
            shutil.rmtree(folder)  # a precompiled header takes 0.1 to 1 GB
    return samples


def precompiled(compiling: Sequence[Step], header: str) -> tuple[Step, list[Step]]:
    """Returns the step that precompiles `header` as used.h.gch, and the compilations, changed so that they use it."""
    first = compiling[0]
    flags = first.argv[: first.argv.index("-MD")]
    argv = (*flags, "-x", "c++-header", header, "-o", "used.h.gch")
    making = first._replace(output="used.h.gch", inputs=(header,), argv=argv, title="precompile the headers")
    using = []
    for step in compiling:
        before, after = step.argv[: step.argv.index("-MD")], step.argv[step.argv.index("-MD") :]
        using.append(
            step._replace(
                inputs=(*step.inputs, making.output), argv=(*before, "-Winvalid-pch", "-include", "used.h", *after)
            )
        )
    return making, using


def _add_results(
    report: Report, abi: str, what: str, counts: Sequence[int], seconds: Mapping[tuple[str, int], list[float]]
) -> None:
    table = report.table(f"{abi} ABI, {what}", "s")
    for count in counts:
        for contender in (PLAIN, HEADER_FIRST, CEILING):
            note = "ceiling" if contender == CEILING else ""
            table.add(f"{count} unit{'s' * (count > 1)}, {contender}", seconds[contender, count], note)
    median = {key: statistics.median(samples) for key, samples in seconds.items()}
    first = pays_from(counts, {n: median[PLAIN, n] for n in counts}, {n: median[HEADER_FIRST, n] for n in counts})
    if first is None:
        report.notes.append(f"{abi} ABI: in {what} the header pays at none of {', '.join(map(str, counts))} units")
    else:
        report.figure(f"{abi} ABI: in {what} the header pays from", first, f"units (of {', '.join(map(str, counts))})")
    most = counts[-1]
    header = statistics.median(
        first_time - before
        for count in counts
        for first_time, before in zip(seconds[HEADER_FIRST, count], seconds[CEILING, count], strict=True)
    )
    saved = (median[PLAIN, most] - median[CEILING, most]) / most
    text = f"{abi} ABI, {what}: the header costs {header:.2f} s and saves {saved:.2f} s a unit"
    report.notes.append(text + (f", which is even at {header / saved:.1f} units" if saved > 0 else ""))


def pays_from(counts: Sequence[int], without: Mapping[int, float], including: Mapping[int, float]) -> int | None:
    """Returns the fewest units from which on the header saves time, including the time to make it.

    None if there is none.
    """
    fewest = None
    for count in reversed(counts):
        if including[count] >= without[count]:
            break
        fewest = count
    return fewest
