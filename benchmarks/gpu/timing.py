"""How figures are measured on a GPU, by the clock of `opforge bench`, and what a task's contenders have in common."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from opforge.bench.clocks import CACHES, DeviceClock
from opforge.bench.harness import take_turns

RAMP = 0.2
"""Seconds of work before a task's first sample: an idle GPU's clocks need some tens of milliseconds to rise."""
STEPS = 20
"""Calls in a sample by the host's clock."""


@dataclass(frozen=True)
class Figure:
    """One contender at one task."""

    task: str
    contender: str
    microseconds: float
    best: float
    gigabytes_a_second: float | None
    """None if bandwidth says nothing about the task. So is `share`."""
    share: float | None
    """The contender's bandwidth over the copy's in the same turns."""
    note: str = ""
    target: str = ""
    """The target in words. Empty if there is none."""
    met: bool | None = None


@dataclass(frozen=True)
class LeftOut:
    """A contender that could not take part in a task, and why."""

    task: str
    contender: str
    reason: str


class OutOfTimeError(Exception):
    """The time of the run is over: no further task is begun."""


class Gpu:
    """The GPU that is measured, and its clock."""

    device = "cuda"
    ends = float("inf")
    """When to begin no further task, by time.monotonic()."""

    def __init__(self, rounds: int = 30, minutes: float | None = None) -> None:
        if minutes is not None:
            self.ends = time.monotonic() + 60 * minutes
        properties = torch.cuda.get_device_properties(0)
        self.name, self.memory = properties.name, properties.total_memory
        self.clock = DeviceClock(self.device)
        self.l2 = self.clock.l2
        self.target = f"cuda:sm_{properties.major}{properties.minor}"
        self.rounds = rounds
        self.left_out: list[LeftOut] = []
        self.failed: dict[str, str] = {}

    def check_time(self) -> None:
        """Raises OutOfTimeError if the time is over. A task calls this before it prepares anything."""
        if time.monotonic() >= self.ends:
            raise OutOfTimeError

    def leave_out(self, task: str, contender: str, reason: str) -> None:
        """Notes that a contender takes no part in a task."""
        self.left_out.append(LeftOut(task, contender, reason))

    def wait(self) -> None:
        """Waits until the device has done all submitted work. Raises the errors of that work."""
        torch.cuda.synchronize()

    def elements_that_fit(self, elements: int, bytes_each: int) -> int:
        """Returns `elements`, halved until they take at most half of the memory with `bytes_each` for an element."""
        while elements * bytes_each > self.memory // 2:
            elements //= 2
        return elements

    def measure(self, contenders: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Returns the microseconds of each contender's work on the device. In turns, each with a cold cache.

        Raises:
            OutOfTimeError: The time is over.
        """
        self._warm_up(contenders)
        return self._microseconds(take_turns(contenders, self.rounds, warmup=0, timer=self.clock))

    def measure_steps(self, contenders: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Returns the microseconds of a call by the host's clock: the mean of STEPS calls, until the device is done.

        Raises:
            OutOfTimeError: The time is over.
        """
        self._warm_up(contenders)

        def timer(call: Callable[[], object], inner: int) -> float:
            self.wait()
            began = time.perf_counter()
            for _ in range(inner):
                call()
            self.wait()
            return (time.perf_counter() - began) / inner

        return self._microseconds(take_turns(contenders, self.rounds, warmup=0, inner=STEPS, timer=timer))

    @staticmethod
    def _microseconds(samples: Mapping[str, list[float]]) -> dict[str, list[float]]:
        return {name: [seconds * 1e6 for seconds in times] for name, times in samples.items()}

    def _warm_up(self, contenders: Mapping[str, Callable[[], object]]) -> None:
        """Runs the contenders until the GPU's clocks are high."""
        self.check_time()
        began, turns = time.monotonic(), 0
        while turns < 2 or time.monotonic() - began < RAMP:
            for call in contenders.values():
                call()
            self.wait()
            turns += 1

    def copy_of(self, moved: float) -> Callable[[], Tensor]:
        """Returns a copy that moves `moved` bytes, but at least the bytes of CACHES second caches each way."""
        half = max(int(moved) // 2, CACHES * self.l2)
        half = min(half, self.memory // 8)
        source, target = (torch.empty(half, dtype=torch.int8, device=self.device) for _ in range(2))
        source.random_(-128, 128)  # zeros may be faster
        copy: Callable[[], Tensor] = lambda: target.copy_(source)  # noqa: E731
        copy.moved = 2 * half  # type: ignore[attr-defined]
        return copy

    def compare_with_copy(
        self, task: str, contenders: Mapping[str, Callable[[], object]], moved: Mapping[str, float]
    ) -> list[Figure]:
        """Returns the figures of the copy and of the contenders, whose calls move `moved` bytes each."""
        copy = self.copy_of(max(moved[name] for name in contenders))
        samples = self.measure({"copy": copy, **contenders})
        speed = copy.moved / statistics.median(samples["copy"]) / 1e3  # type: ignore[attr-defined]
        figures = [Figure(task, "copy", *_median_and_best(samples["copy"]), speed, 1.0)]
        for name in contenders:
            median, best = _median_and_best(samples[name])
            own_speed = moved[name] / median / 1e3
            figures.append(Figure(task, name, median, best, own_speed, own_speed / speed))
        return figures

    def compare(self, task: str, contenders: Mapping[str, Callable[[], object]]) -> list[Figure]:
        """Returns the figures of work on the device that is too small for bandwidth to say much."""
        return _without_bandwidth(task, self.measure(contenders))

    def compare_steps(self, task: str, contenders: Mapping[str, Callable[[], object]]) -> list[Figure]:
        """Returns the figures of calls by the host's clock, for work where the host may take most of the time."""
        return _without_bandwidth(task, self.measure_steps(contenders))


def _without_bandwidth(task: str, samples: Mapping[str, list[float]]) -> list[Figure]:
    return [Figure(task, name, *_median_and_best(times), None, None) for name, times in samples.items()]


def _median_and_best(samples: list[float]) -> tuple[float, float]:
    return statistics.median(samples), min(samples)
