"""How a sample is timed: by the host's clock, or by events on a device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from opforge.ops.cases.case import Seconds

CACHES = 4
"""A device's buffers are at least this many times its second cache, so that no call finds data of the one before."""
AHEAD = 400_000
"""Cycles (some 0.2 ms) for which the device is blocked before a sample.

In that time the host submits all work of a call. Otherwise the host's time would be part of the kernels' time.
"""
Call = Callable[[], object]
THREADS = "/proc/self/task"
"""A folder for each thread of this process. Its file `schedstat` is that of Linux's scheduler statistics."""


def waited() -> float:
    """Returns the seconds for which this process's threads were ready and had no processor, as Linux counts them.

    The sum over the threads that exist; 0 where the system does not count it.
    """
    total = 0
    try:
        for thread in os.listdir(THREADS):
            with open(f"{THREADS}/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return total / 1e9


class HostClock:
    """Wall time, processor time and waiting time of this process. Calls that measure themselves return Seconds."""

    def __init__(self) -> None:
        self.processor: dict[Call, list[float]] = {}
        """Call -> the processor seconds of one call, for each sample in the order of time; 0 if they are unknown."""
        self.waited: dict[Call, list[float]] = {}
        """Call -> the seconds that threads waited for a processor in one call, likewise."""

    def __call__(self, call: Call, inner: int) -> float:
        """Returns the seconds of one call."""
        before = waited()
        processor, began = time.process_time(), time.perf_counter()
        for _ in repeat(None, inner - 1):
            call()
        result = call()
        seconds = (time.perf_counter() - began) / inner
        spent = (time.process_time() - processor) / inner
        waiting = max(0.0, waited() - before) / inner  # a thread that has ended takes its share with it
        if isinstance(result, Seconds):
            seconds, spent, waiting = float(result), result.processor or 0.0, 0.0
        self.processor.setdefault(call, []).append(spent)
        self.waited.setdefault(call, []).append(waiting)
        return seconds

    def wait(self) -> None:
        """Returns at once: calls on the host end when they return."""


class DeviceClock:
    """Events on a device. Its second cache is flushed before each sample."""

    def __init__(self, device: str) -> None:
        import torch

        self.device: Any = torch.get_device_module(device)
        self.processor: dict[Call, list[float]] = {}
        self.waited: dict[Call, list[float]] = {}
        properties = self.device.get_device_properties(0)
        self.l2 = getattr(properties, "L2_cache_size", 0) or 64 << 20
        self._flush = torch.empty(CACHES * self.l2, dtype=torch.int8, device=device)

    def __call__(self, call: Call, inner: int) -> float:
        """Returns the seconds that the device takes for one call."""
        begin, end = self.device.Event(enable_timing=True), self.device.Event(enable_timing=True)
        self.device._sleep(AHEAD)
        self._flush.zero_()
        begin.record()
        for _ in repeat(None, inner):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / inner

    def wait(self) -> None:
        """Waits until the device has done all submitted work. Raises the errors of that work."""
        self.device.synchronize()


def clock_for(device: str) -> HostClock | DeviceClock:
    """Returns the clock of a device: "cpu" or "cuda"."""
    return HostClock() if device == "cpu" else DeviceClock(device)
