"""Measures a case: prepares its contenders, chooses how many calls and rounds, and lets them take turns."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from opforge.ops.cases.case import OURS, TIME, Call, Case, MissingError, Place, Prepared, Seconds

from .clocks import DeviceClock, HostClock, clock_for
from .harness import take_turns
from .results import Result

PAUSE = 0.002
"""Seconds before each turn: OpenMP's threads of the contender before spin for about as long."""


class Effort(NamedTuple):
    """How much time a case gets at one size."""

    seconds: float
    """Of all samples together."""
    fewest: int
    """Rounds. The interval of a median of six is their whole range; of nine, all but the outermost two."""
    most: int
    sample: float
    """Seconds that a sample takes at least: short calls are repeated within it."""


LATE = 4
"""After this many times the planned seconds no further round begins: other programs may slow a run down."""
FULL, QUICK = Effort(4.0, 15, 61, 5e-3), Effort(0.25, 7, 31, 2e-3)
MEMORY_FACTOR = 3
"""A case needs at most this many times the bytes that a call moves: inputs, the baseline's buffers, the rivals'."""


nothing: Call = {}.clear
"""Does nothing, and is no function of Python's: the frame of one belongs to the contender that has it.

Timed in place of a call, it shows the harness's own work.
"""


def measure(op: str, case: Case, size: int, dtype: str, device: str, quick: bool, loaded: Any = None) -> Result:
    """Returns the samples of all contenders at one size and dtype. `loaded` is what `load()` of a builder returns.

    Raises:
        MissingError: Our contender cannot take part here, or the memory does not suffice.
        Exception: Whatever our contender raises.
    """
    effort = QUICK if quick else FULL
    result = _empty(op, case, size, dtype, device)
    _check_memory(case, result.amount)
    with make_place(size, dtype, device, quick) as place:
        clock = clock_for(device)
        calls, measuring = _calls(case.prepare(place, loaded), clock, result.missing)
        result.inner, seconds = _repetitions(calls, measuring, clock, effort)
        rounds = max(effort.fewest, min(effort.most, int(effort.seconds / sum(seconds.values()))))
        clock.processor.clear()
        clock.waited.clear()
        result.samples = take_turns(
            calls,
            rounds,
            warmup=0,
            inner=result.inner,
            pause=PAUSE,
            mirrored=True,
            seconds=LATE * effort.seconds,
            timer=clock,
        )
        result.processor = {name: clock.processor[call] for name, call in calls.items() if call in clock.processor}
        result.waited = {name: clock.waited[call] for name, call in calls.items() if call in clock.waited}
        result.own_work = max(_own_work(clock, result, name) for name in calls) if device == "cpu" else 0.0
    return result


@contextmanager
def make_place(size: int, dtype: str, device: str, quick: bool) -> Iterator[Place]:
    """Gives a place, and ends and removes what the contenders leave in it."""
    with tempfile.TemporaryDirectory(prefix=".opforge-bench-", dir=os.getcwd()) as folder, ExitStack() as stack:
        yield Place(size, dtype, device, folder, quick, stack)


def measurable(case: Case, device: str, quick: bool) -> list[tuple[int, str]]:
    """Returns the sizes and dtypes that a run measures of a case, on a device that the case is for."""
    if device not in case.devices:
        return []
    sizes, dtypes = (case.quick_sizes(), case.measured_dtypes[:1]) if quick else (case.sizes, case.measured_dtypes)
    return [(size, dtype) for dtype in dtypes for size in sizes]


def _empty(op: str, case: Case, size: int, dtype: str, device: str) -> Result:
    import torch

    amount = case.amount(size, getattr(torch, dtype).itemsize)
    result = Result(op, case.name, size, case.size_unit, dtype, device, case.unit, amount, list(case.baseline))
    goals = {name: case.goal(name, size) for name in case.goals}
    result.goals = {name: goal for name, goal in goals.items() if goal is not None}
    result.processor_goals = dict(case.processor_goals)
    return result


def _check_memory(case: Case, amount: float) -> None:
    from opforge.accelerator.host.process_memory import ProcessMemory

    left = ProcessMemory().available()
    needed = MEMORY_FACTOR * amount if case.unit in ("GB/s", TIME) else 0
    if needed > left:
        need, have = needed / 2**30, left / 2**30
        raise MissingError(f"it needs about {need:.1f} GiB of memory, and {have:.1f} GiB are available")


def _calls(
    inputs: Prepared, clock: HostClock | DeviceClock, missing: dict[str, str]
) -> tuple[dict[str, Call], dict[str, float]]:
    """Prepares the contenders and calls each once. Those that cannot take part go to `missing`.

    Returns:
        The calls, and for those that measure themselves how long one took as a whole.
    """
    calls: dict[str, Call] = {}
    measuring: dict[str, float] = {}
    for name, prepare in inputs.case.contenders.items():
        try:
            call = _distinct(prepare(inputs))
            began = time.perf_counter()
            outcome = call()
            clock.wait()  # an error on the device is raised here
            if isinstance(outcome, Seconds):
                measuring[name] = time.perf_counter() - began
        except MissingError as error:
            if name == OURS:
                raise
            missing[name] = str(error)
        except Exception as error:  # rivals raise exceptions of any kind for what they do not support
            if name == OURS:
                raise
            missing[name] = f"it failed: {first_line(error)}"
        else:
            calls[name] = call
    return calls, measuring


def first_line(error: Exception) -> str:
    """Returns an error as one line: its class, and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _distinct(call: Callable[[], Any]) -> Call:
    """Returns the call. If it cannot be a key, because it has no hash or equals another, as a function of its own."""
    return call if type(call).__name__ == "function" else lambda: call()


def _repetitions(
    calls: Mapping[str, Call], measuring: Mapping[str, float], clock: HostClock | DeviceClock, effort: Effort
) -> tuple[dict[str, int], dict[str, float]]:
    """Runs a round that is not kept. Returns the calls in a sample, and the seconds that a sample takes."""
    inner = dict.fromkeys(measuring, 1)
    for name, call in calls.items():
        if name not in inner:
            inner[name] = max(1, min(1000, math.ceil(effort.sample / clock(call, 1))))
    rehearsal = take_turns(calls, 1, warmup=0, inner=inner, pause=PAUSE, timer=clock)
    seconds = {name: whole + PAUSE for name, whole in measuring.items()}
    for name, (alone,) in rehearsal.items():
        if name not in measuring:
            inner[name] = max(1, math.ceil(effort.sample / alone))
            seconds[name] = alone * inner[name] + PAUSE
    return inner, seconds


def _own_work(clock: HostClock | DeviceClock, result: Result, name: str) -> float:
    """Returns the share of a contender's samples that the harness itself took: the same loop, around `nothing`."""
    inner = result.inner[name]
    empty = min(clock(nothing, inner) for _ in range(5))
    return empty / result.time(name).value
