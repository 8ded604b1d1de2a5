"""Which tests take how much of a processor, with all processes that they start: pytest's option `--processor-time`.

What a fixture of a module makes counts for the first test with it. Time of a processor says more than a clock: others
may use the machine.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest
from support.processes import shared_torch

TICKS = os.sysconf("SC_CLK_TCK")


def so_far() -> float:
    """Returns the seconds of this process, of those that it has waited for, and of those that it has started.

    Servers with torch count for the process that uses them, whichever started what they are forked from.
    """
    servers, of_others = shared_torch.processes()
    times = os.times()
    spent = sum(times[:4])
    children: dict[int, list[int]] = {}
    seconds = dict[int, float]()
    for name in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc/self") else ()):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(name))
            seconds[int(name)] = sum(map(int, fields[11 : 13 if int(name) in of_others else 15])) / TICKS
    waiting = [*children.get(os.getpid(), ()), *servers]
    for pid in waiting:
        spent += seconds.get(pid, 0.0)
        waiting += () if pid in of_others else children.get(pid, ())
    return spent


class ProcessorTime:
    """Notes what each test takes, and prints the most expensive ones."""

    def __init__(self, most: int) -> None:
        """Begins in a process that has collected nothing."""
        self._most, self._before = most, 0.0
        self._tests, self._files = defaultdict[str, float](float), defaultdict[str, float](float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: Any) -> Generator[None, Any, Any]:
        """Adds the seconds since the last test to the report of a test's end: to look at each process takes 2 ms."""
        report = yield
        if call.when == "teardown":
            now = so_far()
            report.processor_seconds, self._before = max(0.0, now - self._before), now
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        """Leaves out what this process took to collect."""
        self._before = self._before or so_far()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Adds up, in the process that prints, what its workers or itself have noted."""
        self._tests[report.nodeid] += getattr(report, "processor_seconds", 0.0)
        self._files[report.nodeid.partition("::")[0]] += getattr(report, "processor_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the sum, and the most expensive files and tests."""
        terminalreporter.section(f"{sum(self._tests.values()):.0f} s of a processor, collecting left out")
        for counted in (self._files, self._tests):
            for name, seconds in sorted(counted.items(), key=lambda item: -item[1])[: self._most]:
                terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
