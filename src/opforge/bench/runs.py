"""A whole run: all selected cases, one after another, with the machine's facts and load."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from opforge.errors import OpforgeError
from opforge.ops.cases import MissingError

from . import machine
from .measure import first_line, measure
from .results import Result, Run
from .selection import Selected, points

Report = Callable[[int, int, str], None]
"""(number of what is measured next, number of all, its name)"""


def run(
    selected: Sequence[Selected],
    device: str,
    quick: bool,
    begins: Report = lambda number, total, name: None,
    ends: Callable[[Result], None] = lambda result: None,
) -> Run:
    """Measures cases.

    What cannot be measured goes to the run's `missing`, with the reason. An op that cannot be built is skipped at its
    first case. Ctrl-C ends the run, which keeps what was measured.

    Args:
        selected: The cases.
        device: "cpu" or "cuda".
        quick: Whether to measure few sizes, and those shortly.
        begins: Called before each measurement.
        ends: Called with each result.

    Returns:
        The run.
    """
    began = time.perf_counter()
    results = Run(machine.describe(device), device, quick, load_before=list(os.getloadavg()))
    plan = list(points(selected, device, quick))
    for number, (item, size, dtype) in enumerate(plan, 1):
        if item.op in results.missing:
            continue
        name = f"{item.op}, {item.case.name}"
        begins(number, len(plan), name)
        try:
            result = measure(item.op, item.case, size, dtype, device, quick, item.load(device))
        except KeyboardInterrupt:
            results.interrupted = True
            break
        except MissingError as error:
            results.missing[f"{name}, {size} {item.case.size_unit}, {dtype}"] = str(error)
        except OpforgeError as error:
            results.missing[item.op] = str(error)
        except Exception as error:  # one case that fails must not lose the results of the others
            results.missing[f"{name}, {size} {item.case.size_unit}, {dtype}"] = first_line(error)
        else:
            results.results.append(result)
            ends(result)
    results.load_after, results.seconds = list(os.getloadavg()), time.perf_counter() - began
    return results
