"""What a GPU's figures are measured with: events on the device, a flushed cache, contenders by turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

OLDEST = 4
"""How many times the second cache the tensors are at least, so that nothing of one call is left for the next."""
RAMP = 0.2
"""Seconds of work before a task's first sample: an idle GPU's clocks need some tens of milliseconds to rise."""
AHEAD = 400_000
"""Cycles (some 0.2 ms) that the device stands still before a sample, so that the host has asked for all of a call's
work before the first of it runs: what the host takes is not the kernels' time."""
STEPS = 20
"""Calls one after the other of which a sample by the host's clock consists."""


@dataclass(frozen=True)
class Figure:
    """One contender at one task. `share` is of the copy's bandwidth in the same turns; None where bytes say nothing."""

    task: str
    contender: str
    microseconds: float
    best: float
    gigabytes_a_second: float | None
    share: float | None
    note: str = ""
    target: str = ""
    """What it is to reach, in words; empty where nothing was set."""
    met: bool | None = None


@dataclass(frozen=True)
class LeftOut:
    """A contender that could not take part in a task, and why."""

    task: str
    contender: str
    reason: str


class OutOfTimeError(Exception):
    """The time that was given is over: no further task is begun."""


class Gpu:
    """The GPU that is measured, and what flushes its cache."""

    device = "cuda"
    ends = float("inf")
    """When no further task is begun, by time.monotonic()."""

    def __init__(self, rounds: int = 30, minutes: float | None = None) -> None:
        if minutes is not None:
            self.ends = time.monotonic() + 60 * minutes
        properties = torch.cuda.get_device_properties(0)
        self.name, self.memory = properties.name, properties.total_memory
        self.l2 = getattr(properties, "L2_cache_size", 0) or 64 << 20
        self.target = f"cuda:sm_{properties.major}{properties.minor}"
        self.rounds = rounds
        self.left_out: list[LeftOut] = []
        self.failed: dict[str, str] = {}
        self._flush = torch.empty(OLDEST * self.l2, dtype=torch.int8, device=self.device)

    def check_time(self) -> None:
        """Raises OutOfTimeError; a task asks before it prepares anything."""
        if time.monotonic() >= self.ends:
            raise OutOfTimeError

    def leave_out(self, task: str, contender: str, reason: str) -> None:
        """Note that a contender takes no part in a task."""
        self.left_out.append(LeftOut(task, contender, reason))

    def wait(self) -> None:
        """Until the device has done what it was asked for. Raises what failed there."""
        torch.cuda.synchronize()

    def fitting(self, elements: int, bytes_each: int) -> int:
        """`elements`, or the power of two under it of which tensors of `bytes_each` an element take half the memory."""
        while elements * bytes_each > self.memory // 2:
            elements //= 2
        return elements

    def measure(self, contenders: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Microseconds of each contender's work on the device, by turns, each with a cold cache.

        Raises OutOfTimeError.
        """
        samples = self._warm(contenders)
        for _ in range(self.rounds):
            for name, call in contenders.items():
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda._sleep(AHEAD)  # type: ignore[no-untyped-call]
                self._flush.zero_()
                begin.record()
                call()
                end.record()
                end.synchronize()
                samples[name].append(begin.elapsed_time(end) * 1000.0)
        return samples

    def measure_steps(self, contenders: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Microseconds a call by the host's clock: STEPS of them, until the device has done the last. By turns.

        Raises OutOfTimeError.
        """
        samples = self._warm(contenders)
        for _ in range(self.rounds):
            for name, call in contenders.items():
                self.wait()
                began = time.perf_counter()
                for _ in range(STEPS):
                    call()
                self.wait()
                samples[name].append((time.perf_counter() - began) * 1e6 / STEPS)
        return samples

    def _warm(self, contenders: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        self.check_time()
        began, turns = time.monotonic(), 0
        while turns < 2 or time.monotonic() - began < RAMP:
            for call in contenders.values():
                call()
            self.wait()
            turns += 1
        return {name: [] for name in contenders}

    def copy_of(self, moved: int) -> Callable[[], Tensor]:
        """A call that copies half of `moved` bytes, reading them and writing as many; of at least four caches."""
        half = max(moved // 2, OLDEST * self.l2)
        half = min(half, self.memory // 8)
        source, target = (torch.empty(half, dtype=torch.int8, device=self.device) for _ in range(2))
        source.random_(-128, 128)  # zeros may be faster
        copy: Callable[[], Tensor] = lambda: target.copy_(source)  # noqa: E731
        copy.moved = 2 * half  # type: ignore[attr-defined]
        return copy

    def beside_copy(
        self, task: str, contenders: Mapping[str, Callable[[], object]], moved: Mapping[str, int]
    ) -> list[Figure]:
        """Figures of the contenders, which move so many bytes a call, beside the copy."""
        copy = self.copy_of(max(moved[name] for name in contenders))
        samples = self.measure({"copy": copy, **contenders})
        speed = copy.moved / statistics.median(samples["copy"]) / 1e3  # type: ignore[attr-defined]
        figures = [Figure(task, "copy", *_two(samples["copy"]), speed, 1.0)]
        for name in contenders:
            median, best = _two(samples[name])
            own = moved[name] / median / 1e3
            figures.append(Figure(task, name, median, best, own, own / speed))
        return figures

    def by_turns(self, task: str, contenders: Mapping[str, Callable[[], object]]) -> list[Figure]:
        """Figures of work on the device that is too small for bytes to say much."""
        return _without_bytes(task, self.measure(contenders))

    def by_steps(self, task: str, contenders: Mapping[str, Callable[[], object]]) -> list[Figure]:
        """Figures of calls by the host's clock, where the host may be what takes the time."""
        return _without_bytes(task, self.measure_steps(contenders))


def _without_bytes(task: str, samples: Mapping[str, list[float]]) -> list[Figure]:
    return [Figure(task, name, *_two(some), None, None) for name, some in samples.items()]


def _two(samples: list[float]) -> tuple[float, float]:
    return statistics.median(samples), min(samples)
