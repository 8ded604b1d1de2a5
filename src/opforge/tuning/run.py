"""A run of `opforge tune`: each dtype and size by itself, written when it is done, so that it can be stopped."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from opforge.bench.clocks import clock_for
from opforge.bench.measure import first_line, make_place
from opforge.bench.medians import Median
from opforge.builders.lookup import tuning_results as records
from opforge.cache.filesystem import lock
from opforge.errors import TuningError
from opforge.foundation import formats
from opforge.foundation.files import make_folder
from opforge.ops.cases.case import OURS, Call, Case, MissingError, Prepared
from opforge.testing import comparison
from opforge.testing.tensors import cloned, poisoned_memory

from . import search
from .search import Candidate, Choice, Config
from .subjects import Subject, Timing

SECONDS = 4.0
"""How long the choice of one config takes, unless a budget says otherwise."""
LEAST_SECONDS = 0.25
MAX_WHY = 200
LOCK_SECONDS = 60.0


class Step(NamedTuple):
    """One dtype and size of a run."""

    number: int
    total: int
    case: Case
    dtype: str
    size: int
    counted: int
    """The size as the op counts it, by which calls are compared with it."""

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.case.kernel + ', ' if self.case.kernel else ''}{self.dtype} of {self.counted}"


class Done(NamedTuple):
    """The outcome of a step."""

    step: Step
    row: Mapping[str, Any] | None
    """The result; None if nothing was timed."""
    is_new: bool = True
    """Whether it was timed now, and not by an earlier run."""
    problem: str = ""
    """Why nothing was timed."""
    is_busy: bool = False


class Budget:
    """How long a run may take, shared among what is left of it."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = math.inf if seconds is None else clock() + seconds

    def share(self, left: int) -> float:
        """Returns the seconds for the next of so many steps; 0 if there are none left."""
        if self._end == math.inf:
            return SECONDS
        seconds = (self._end - self._clock()) / left
        return min(SECONDS, seconds) if seconds >= LEAST_SECONDS else 0.0


def run(
    subject: Subject,
    places: Sequence[Timing],
    root: str,
    budget: Budget,
    again: bool,
    begins: Callable[[Step], None],
    ends: Callable[[Done], None],
    timer: search.Timer | None = None,
) -> str:
    """Times what is not in the store's result yet, and writes each row when it is known; returns the result's path.

    `again` times all of it. `timer` is by default that of the case's device. Raises TuningError, and KeyboardInterrupt
    when it is stopped: what is written by then stays.
    """
    path = records.path_of(root, subject.wanted.description, subject.wanted.target, subject.wanted.cores)
    try:
        for number, timing in enumerate(places):
            step = Step(number + 1, len(places), *timing)
            configs = subject.configs(step.case)
            before = None if again else _known(path, step.case.kernel, step.dtype, step.counted, configs)
            if before is not None:
                ends(Done(step, before, is_new=False))
                continue
            seconds = budget.share(len(places) - number)
            if not seconds:
                ends(Done(step, None, problem="the budget is spent"))
                continue
            begins(step)
            done = _timed(subject, step, configs, seconds, timer)
            if done.row is not None:
                _write(root, path, subject, done.row)
            ends(done)
    finally:
        subject.restore()
    return path


def _known(path: str, what: str, dtype: str, size: int, configs: Sequence[Config]) -> Mapping[str, Any] | None:
    """Returns the row of an earlier run, if it has tried each of these configs, and the machine was not busy."""
    for row in _rows(path):
        if (row["what"], row["dtype"], row["size"]) == (what, dtype, size):
            tried = [row["config"], *(other["config"] for other in row["others"])]
            is_done = not row["why"].startswith(search.BUSY) and all(dict(config) in tried for config in configs)
            return row if is_done else None
    return None


def _rows(path: str) -> list[Mapping[str, Any]]:
    try:
        stored = records.read_stored(path)
    except FileNotFoundError:
        return []
    return [] if stored.problem else list(stored.value["rows"])


def _write(root: str, path: str, subject: Subject, row: Mapping[str, Any]) -> None:
    """Adds a row to the result, in the place of an earlier one for the same. Raises TuningError."""
    wanted, place = subject.wanted, (row["what"], row["dtype"], row["size"])
    try:
        make_folder(os.path.dirname(path))
        with lock.acquire(f"{path}.lock", f"the tuning result {path}", LOCK_SECONDS):
            rows = [other for other in _rows(path) if (other["what"], other["dtype"], other["size"]) != place]
            value = {"format": formats.TUNED, "op": subject.op, "kernel": wanted.description, "target": wanted.target}
            records.write(root, {**value, "cores": wanted.cores, "rows": [*rows, row]})
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TuningError(
            path, f"it cannot be written ({reason})", "Set OPFORGE_CACHE_DIR to another folder"
        ) from error


def _timed(subject: Subject, step: Step, configs: Sequence[Config], seconds: float, timer: search.Timer | None) -> Done:
    case = step.case
    device = subject.device if subject.device in case.devices else case.devices[0]
    with make_place(step.size, step.dtype, device, quick=True) as place:
        try:
            inputs = case.prepare(place, subject.loaded)
            timed = inputs._replace(arguments=cloned(inputs.arguments))  # its calls may change them
            subject.use(case, {})
            default = _call(timed, {})
            if problem := wrong(inputs):
                raise TuningError(subject.op, f"{step.label}: its default is wrong: {problem}", "Correct the op first")
        except MissingError as error:
            return Done(step, None, problem=str(error))
        refused = list[search.Other]()
        candidates = list[Candidate]()
        for config in configs:
            subject.use(case, config)
            try:
                call = _call(timed, config)
                problem = wrong(inputs)
            except Exception as error:  # a kernel may raise anything for a config that it cannot run
                problem = f"it failed: {first_line(error)}"
            if problem:
                why = _line(f"refused, because {problem}")
                refused.append(search.Other(config, Median(1.0, 1.0, 1.0), why))
            else:
                candidates.append(Candidate(config, call, lambda config: subject.use(case, config)))
        own = Candidate({}, default, lambda config: subject.use(case, config))
        choice = search.choose(own, candidates, timer or clock_for(device), seconds)
        subject.use(case, {})  # what is timed next may launch this kernel too, and the last config may have failed
    return Done(step, _row(step, choice, refused), is_busy=choice.is_busy)


def _call(inputs: Prepared, config: Config) -> Call:
    """Returns the call that is timed with a config."""
    return inputs.case.contenders[OURS](inputs._replace(place=replace(inputs.place, config=config)))


def wrong(inputs: Prepared) -> str:
    """Returns how the results of the config that is set differ from the reference's. Empty if they agree.

    New memory and outputs hold NaN before: what a config does not write is not what another one has left there.
    A case without a reference compares its results itself, when it prepares its call.
    """
    case = inputs.case
    if case.reference is None:
        return ""
    function = case.bound(inputs.loaded)
    arguments = comparison.with_poisoned_outputs(case, function, tuple(cloned(inputs.arguments)))
    with poisoned_memory():
        results = comparison.results(function, arguments, case.keywords)
    return comparison.problem(case, results, inputs.arguments)


def _row(step: Step, choice: Choice, refused: Sequence[search.Other]) -> dict[str, Any]:
    others = [*choice.others, *refused][: records.MAX_OTHERS]
    return {
        "what": step.case.kernel,
        "dtype": step.dtype,
        "size": step.counted,
        "config": dict(choice.config),
        **_numbers(choice.ratio),
        "rounds": choice.rounds,
        "why": _line(choice.why),
        "others": [{"config": dict(other.config), **_numbers(other.ratio), "why": other.why} for other in others],
    }


def _numbers(ratio: Median) -> dict[str, float]:
    # Rounded down and up, so that the ratio stays in its interval and no interval becomes better.
    low, high = math.floor(ratio.low * 1e4) / 1e4, math.ceil(ratio.high * 1e4) / 1e4
    return {"ratio": min(high, max(low, round(ratio.value, 4))), "low": max(low, 1e-4), "high": high}


def _line(text: str) -> str:
    return ascii(text)[1:-1][:MAX_WHY] if not (text.isascii() and text.isprintable()) else text[:MAX_WHY]
