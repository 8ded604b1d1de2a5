"""The choice of a config: by turns, in rounds that do not decide, and then in fresh ones that do.

All configs are timed in a few rounds. The one that was fastest in these is then timed beside the default in further
rounds: the interval of the fastest of many, in the rounds in which it was the fastest, would be too good. There the
default is timed twice. If it differs from itself, the machine is busy with other work, and nothing is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.bench.harness import take_turns
from opforge.bench.medians import Median, median
from opforge.builders.lookup.tuning_results import REPLACES
from opforge.ops.cases.case import Seconds

Config = Mapping[str, int]
FIRST_ROUNDS, FEWEST, MOST = 5, 15, 61
"""Rounds in which all configs are timed, and rounds that decide. Of 15, the interval leaves out three at each end."""
SAMPLE = 2e-3
"""Seconds that a sample takes at least: short calls are repeated within it."""
PAUSE = 0.002
"""Seconds before each turn: OpenMP's threads of the one before spin for about as long."""
BUSY = "the machine is busy"
"""The beginning of the reason of a choice that another run makes again."""
QUIET = 0.05
"""How far from 1 the interval of the default beside itself may reach. More is a busy machine."""


class Candidate:
    """A config with the call that is timed. Equal ones are different candidates: the default takes part twice."""

    def __init__(self, config: Config, call: Callable[[], object], use: Callable[[Config], None]) -> None:
        self.config, self._call, self._use = dict(config), call, use

    def begin(self) -> None:
        """Sets the config, before the clock is read."""
        self._use(self.config)

    def __call__(self) -> object:
        """Makes the call that is timed."""
        return self._call()

    def again(self) -> Candidate:
        """Returns the same once more."""
        return Candidate(self.config, self._call, self._use)


class Other(NamedTuple):
    """A config that is not taken."""

    config: Config
    ratio: Median
    why: str


class Choice(NamedTuple):
    """The config to take: empty for the default."""

    config: Config
    ratio: Median
    rounds: int
    why: str
    """Why it is the default; empty if it is not."""
    others: Sequence[Other]
    is_busy: bool = False


Timer = Callable[[Any, int], float]
UNTIMED = Median(1.0, 1.0, 1.0)


def choose(
    default: Candidate, candidates: Sequence[Candidate], timer: Timer, seconds: float, pause: float = PAUSE
) -> Choice:
    """Returns which candidate takes the place of the default, if any.

    Args:
        default: The op's defaults.
        candidates: The other configs.
        timer: Runs a candidate a number of times, and returns the seconds of one call.
        seconds: About how long all of it may take.
        pause: Seconds of sleep before each turn.
    """
    if not candidates:
        return Choice({}, UNTIMED, 0, "no other config is left", [])
    timed = _Timed(timer, pause)
    alone = min(timed.one(default) for _ in range(2))
    # A call that measures itself does so for long enough.
    inner = 1 if isinstance(default(), Seconds) else max(1, min(1000, math.ceil(SAMPLE / max(alone, 1e-9))))
    first = timed.turns({"": default, **_numbered(candidates)}, FIRST_ROUNDS, inner, seconds / 2)
    ratios = {name: _ratio(first[name], first[""]) for name in _numbered(candidates)}
    best = min(ratios, key=lambda name: ratios[name].value)
    others = [
        Other(candidate.config, ratios[name], _slower(ratios[name], ratios[best]))
        for name, candidate in _numbered(candidates).items()
        if name != best
    ]
    chosen = _numbered(candidates)[best]
    each = 3 * (max(alone, SAMPLE) + pause)
    rounds = max(FEWEST, min(MOST, int(seconds / 2 / each)))
    fresh = timed.turns({"": default, "again": default.again(), "best": chosen}, rounds, inner, seconds)
    count = len(fresh["best"])
    ratio, control = _ratio(fresh["best"], fresh[""]), _ratio(fresh["again"], fresh[""])
    if control.low < 1 - QUIET or control.high > 1 + QUIET:
        why = f"{BUSY}: the default took {control.low:.2f} to {control.high:.2f} of its own time"
        return Choice({}, UNTIMED, count, why, [Other(chosen.config, ratio, "the machine was busy"), *others], True)
    if ratio.high >= REPLACES:
        why = f"no interval is below {REPLACES}"
        reason = f"its interval ends at {ratio.high:.3f}, which is not below {REPLACES}"
        return Choice({}, UNTIMED, count, why, [Other(chosen.config, ratio, reason), *others])
    return Choice(chosen.config, ratio, count, "", others)


class _Timed:
    """Lets candidates take turns."""

    def __init__(self, timer: Timer, pause: float) -> None:
        self._timer, self._pause = timer, pause

    def one(self, candidate: Candidate) -> float:
        candidate.begin()
        return self._timer(candidate, 1)

    def turns(
        self, candidates: Mapping[str, Candidate], rounds: int, inner: int, seconds: float
    ) -> dict[str, list[float]]:
        def timer(call: Any, count: int) -> float:
            call.begin()
            return self._timer(call, count)

        return take_turns(
            candidates, rounds, warmup=1, inner=inner, pause=self._pause, mirrored=True, seconds=seconds, timer=timer
        )


def _numbered(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    return {str(number): candidate for number, candidate in enumerate(candidates)}


def _ratio(samples: Sequence[float], baseline: Sequence[float]) -> Median:
    """Returns how much of the baseline's time the samples take, from the ratio of each round."""
    return median([own / other for own, other in zip(samples, baseline, strict=True)])


def _slower(ratio: Median, best: Median) -> str:
    return f"it took {ratio.value:.3f} of the default's time in the first rounds, and another one {best.value:.3f}"
