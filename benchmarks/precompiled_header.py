"""From how many units that face torch does a precompiled header of torch's own headers pay, its making included?"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .commands import NAME, Spent, builder_of, empty_store, steps_of, under_ninja, write_unit
from .harness import Report
from .machine import cores
from .scratch import Scratch, too_long

if TYPE_CHECKING:
    from opforge.builders.spec.build_plan import Step

PLAIN, MADE, CEILING = "without", "with, made first", "with, made before"
KINDS: dict[str, tuple[str, tuple[int, ...], int]] = {
    "torch-stable": ("stable_relu.cpp", (1, 2, 4, 8), 3),
    "torch": ("pybind_relu.cpp", (1, 2, 4), 1),
}
"""ABI -> the small op in csrc/ that all units are copies of, how many units at once, and rounds."""
LONG_KINDS = ("torch",)
"""20 to 35 s a unit."""
Samples = dict[tuple[str, int], list[Spent]]


def run(scratch: Scratch) -> Report:
    """The commands of opforge's own builds under ninja alone, on all cores; nothing is linked."""
    report = Report(
        f"{NAME}'s units with the same commands, with and without a precompiled header of what they include",
        f"{CEILING}: the units alone, as if another op had paid for the header",
    )
    for abi, (template, counts, rounds) in KINDS.items():
        if abi in LONG_KINDS and not scratch.long:
            report.left_out.append(too_long(f"{abi} ABI"))
            continue
        samples = _measure(scratch, abi, template, counts, rounds)
        for what, field in (("wall time", "wall"), ("CPU time", "cpu")):
            seconds = {key: [getattr(one, field) for one in found] for key, found in samples.items()}
            _tell(report, abi, what, counts, seconds)
    report.notes.append(f"up to {cores()} compilers at once: while the header is made, the others wait")
    return report


def _measure(scratch: Scratch, abi: str, template: str, counts: Sequence[int], rounds: int) -> Samples:
    sources = scratch.fresh("units")
    names = [write_unit(template, sources, number) for number in range(max(counts))]
    steps = steps_of(builder_of(NAME, sources, names, abi), empty_store(scratch.fresh("store")))
    compiling = [step for step in steps if step.unit]
    header = os.path.join(sources, "all.h")
    with open(os.path.join(sources, names[0]), encoding="utf-8") as file, open(header, "w", encoding="utf-8") as made:
        made.writelines(line for line in file if line.startswith("#include"))
    making, using = precompiled(compiling, header)
    samples: Samples = {}
    for _ in range(rounds):
        for count in counts:
            plain, units = compiling[:count], using[:count]
            folder = scratch.fresh("units")
            samples.setdefault((PLAIN, count), []).append(under_ninja(folder, plain))
            for step in plain:
                os.unlink(os.path.join(folder, step.output))
            # The unit names a header that only fails, so that one that does not use the precompiled one fails too.
            with open(os.path.join(folder, "used.h"), "w", encoding="utf-8") as file:
                file.write('#error "the precompiled header was not used"\n')
            samples.setdefault((MADE, count), []).append(under_ninja(folder, [making, *units]))
            for step in units:
                os.unlink(os.path.join(folder, step.output))
            samples.setdefault((CEILING, count), []).append(under_ninja(folder, units))
            shutil.rmtree(folder)  # a precompiled header takes a tenth of a gigabyte, or most of one
    return samples


def precompiled(compiling: Sequence[Step], header: str) -> tuple[Step, list[Step]]:
    """The command that precompiles `header` as used.h.gch, and the compilations changed so that each waits for it."""
    first = compiling[0]
    told = first.argv[: first.argv.index("-MD")]
    argv = (*told, "-x", "c++-header", header, "-o", "used.h.gch")
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


def _tell(
    report: Report, abi: str, what: str, counts: Sequence[int], seconds: Mapping[tuple[str, int], list[float]]
) -> None:
    table = report.table(f"{abi} ABI, {what}", "s")
    for count in counts:
        for contender in (PLAIN, MADE, CEILING):
            note = "ceiling" if contender == CEILING else ""
            table.add(f"{count} unit{'s' * (count > 1)}, {contender}", seconds[contender, count], note)
    middle = {key: statistics.median(found) for key, found in seconds.items()}
    first = pays_from(counts, {n: middle[PLAIN, n] for n in counts}, {n: middle[MADE, n] for n in counts})
    if first is None:
        report.notes.append(f"{abi} ABI: in {what} the header pays at none of {', '.join(map(str, counts))} units")
    else:
        report.figure(f"{abi} ABI: in {what} the header pays from", first, f"units (of {', '.join(map(str, counts))})")
    most = counts[-1]
    header = statistics.median(
        made - before
        for count in counts
        for made, before in zip(seconds[MADE, count], seconds[CEILING, count], strict=True)
    )
    saved = (middle[PLAIN, most] - middle[CEILING, most]) / most
    text = f"{abi} ABI, {what}: the header costs {header:.2f} s and saves {saved:.2f} s a unit"
    report.notes.append(text + (f", which is even at {header / saved:.1f} units" if saved > 0 else ""))


def pays_from(counts: Sequence[int], without: Mapping[int, float], including: Mapping[int, float]) -> int | None:
    """The fewest units from which on the header, its making included, takes less time; None where it never does."""
    found = None
    for count in reversed(counts):
        if including[count] >= without[count]:
            break
        found = count
    return found
