"""A precompiled header for a build in which many units begin with the same header of torch's.

It is made in the build's own folder and goes with it, so it never meets a header that has changed, which gcc would not
notice. What it was made from counts as read by each unit that uses it: gcc's own list for such a unit leaves that out.
A unit uses it only if the header is the first thing that it includes: then the compiler sees the same text either way,
and an object that was compiled with it is as good as one without.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from opforge.builders.spec.abi import STABLE, TORCH
from opforge.builders.spec.build_plan import BuildPlan, Step

UNITS_A_COMPILER = {TORCH: 2, STABLE: 4}
"""From how many units for each compiler that runs at once it takes less time to make the header first: while it is
made, the others wait (benchmarks/precompiled_header.py)."""
NAME = "first.h"
COMMENTS = r"\A(?:\s|//[^\n]*\n|/\*.*?\*/)*"
FIRST_DIRECTIVE = re.compile(COMMENTS + r'#\s*include\s*([<"]torch/[^>"]+[>"])', re.DOTALL)
LONGEST_PREAMBLE = 64 << 10


def apply(plan: BuildPlan, steps: Sequence[Step], jobs: int, roots: Mapping[str, str], work: str) -> list[Step]:
    """The steps, changed to use a precompiled header, which the first of them makes; unchanged where it cannot pay."""
    enough = UNITS_A_COMPILER.get(plan.abi, 0) * jobs
    units = [step for step in steps if step.unit]
    if not enough or len(units) < enough:
        return list(steps)
    first = {step.output: _first_include(step, roots) for step in units}
    header, count = Counter(one for one in first.values() if one).most_common(1)[0] if any(first.values()) else ("", 0)
    if count < enough:
        return list(steps)
    with open(os.path.join(work, NAME), "w", encoding="utf-8") as file:
        file.write(f"#include {header}\n")
    making = _making(next(step for step in units if first[step.output] == header), header)
    return [making, *(_using(step, making) if first.get(step.output) == header else step for step in steps)]


def header_step(step: Step, steps: Sequence[Step]) -> Step | None:
    """The step that makes the precompiled header that `step` uses, if it uses one."""
    return next((one for one in steps if one.output == NAME + ".gch" and one.output in step.inputs), None)


def _first_include(step: Step, roots: Mapping[str, str]) -> str:
    assert step.unit is not None
    path = step.unit.resolve(roots)
    try:
        with open(path or "", encoding="utf-8", errors="replace") as file:
            found = FIRST_DIRECTIVE.match(file.read(LONGEST_PREAMBLE))
    except OSError:
        return ""  # the compiler will say so
    return found[1] if found else ""


def _making(like: Step, header: str) -> Step:
    told = like.argv[: like.argv.index("-MD")]
    output, depfile = NAME + ".gch", NAME + ".gch.d"
    argv = (*told, "-MD", "-MF", depfile, "-x", "c++-header", NAME, "-o", output)
    return Step(output, (NAME,), argv, f"precompile {header}", depfile)


def _using(step: Step, making: Step) -> Step:
    at = step.argv.index("-MD")
    argv = (*step.argv[:at], "-include", NAME, *step.argv[at:])
    return step._replace(inputs=(*step.inputs, making.output), argv=argv)
