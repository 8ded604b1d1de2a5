"""The host memory that this process uses, and that the machine and the cgroup leave it; in bytes."""

from __future__ import annotations

import os
from time import monotonic

from .cgroup import MemoryLimit, memory_limits
from .files import field, read_text

LIMITS_LAST = 1.0
"""Seconds for which the machine's memory and the cgroup's limits are kept: to find them, a dozen files are read."""


class ProcessMemory:
    """The process's resident set, its peak, and the memory that it may use.

    The peak is the kernel's (VmHWM), so a peak between two calls is not missed. A reset needs a kernel that lets the
    process write /proc/self/clear_refs. Otherwise the peak after a reset is exact only if it exceeds the peak before
    the reset; if not, it is the largest resident set that a call has read since.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._stale_peak = -1
        self._largest = 0
        self._total = 0
        self._limits: list[MemoryLimit] = []
        self._limits_end = 0.0

    def resident(self) -> int:
        """Returns the resident set's size."""
        # statm costs the kernel half of what status does: its second number is the resident set, in pages.
        words = (read_text(self._root, "proc/self/statm") or "").split(maxsplit=2)
        if len(words) < 3 or not words[1].isdecimal():
            return self.resident_and_peak()[0]
        resident = int(words[1]) * _PAGE
        # The kernel may count statm's number more exactly than status's, so the peak might otherwise be below it.
        self._largest = max(self._largest, resident)
        return resident

    def peak(self) -> int:
        """Returns the resident set's largest size since the start or the last reset."""
        return self.resident_and_peak()[1]

    def resident_and_peak(self) -> tuple[int, int]:
        """Returns the resident set's size, and its largest since the start or the last reset."""
        resident, peak = self._resident_and_peak()
        self._largest = max(self._largest, resident)
        return resident, max(peak, self._largest) if peak > self._stale_peak else self._largest

    def reset_peak(self) -> None:
        """Resets the peak to the current size."""
        try:
            handle = os.open(os.path.join(self._root, "proc/self/clear_refs"), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, b"5")
            finally:
                os.close(handle)
            self._largest, self._stale_peak = 0, -1
        except OSError:
            self._largest, self._stale_peak = self._resident_and_peak()

    def total(self) -> int:
        """Returns the machine's memory, or the cgroup's limit if that is lower, as they were within the last second."""
        if monotonic() >= self._limits_end:
            self._limits = memory_limits(self._root)
            memory = field(read_text(self._root, "proc/meminfo"), "MemTotal") or _PAGE * os.sysconf("SC_PHYS_PAGES")
            self._total = min([memory, *(limit.size for limit in self._limits)])
            self._limits_end = monotonic() + LIMITS_LAST
        return self._total

    def available(self) -> int:
        """Returns the kernel's estimate of the memory available without swapping, or the cgroup's rest if less."""
        total, meminfo = self.total(), read_text(self._root, "proc/meminfo")
        free = field(meminfo, "MemAvailable")
        if free is None:
            free = field(meminfo, "MemFree")
        free = max(0, total - self.resident()) if free is None else free
        return min([free, *(limit.left(self._root) for limit in self._limits)])

    def _resident_and_peak(self) -> tuple[int, int]:
        status = read_text(self._root, "proc/self/status")
        if (resident := field(status, "VmRSS")) is not None:
            return resident, max(resident, field(status, "VmHWM") or 0)
        # Without /proc the system reports only the peak, so return it for both.
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return peak, peak


_PAGE = os.sysconf("SC_PAGE_SIZE")
