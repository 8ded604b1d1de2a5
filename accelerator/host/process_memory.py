"""The host memory that this process uses, and that the machine and the cgroup leave it; in bytes."""

from __future__ import annotations

import os

from .cgroup import memory_left, memory_limit
from .files import read_fields


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

    def resident(self) -> int:
        """Returns the resident set's size."""
        return self._resident_and_peak()[0]

    def peak(self) -> int:
        """Returns the resident set's largest size since the start or the last reset."""
        resident, peak = self._resident_and_peak()
        self._largest = max(self._largest, resident)
        return peak if peak > self._stale_peak else self._largest

    def reset_peak(self) -> None:
        """Resets the peak to the current size."""
        try:
            handle = os.open(os.path.join(self._root, "proc/self/clear_refs"), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, b"5")
            finally:
                os.close(handle)
            self._stale_peak = -1
        except OSError:
            self._largest, self._stale_peak = self._resident_and_peak()

    def total(self) -> int:
        """Returns the machine's memory, or the cgroup's limit if that is lower."""
        total = read_fields(self._root, "proc/meminfo").get("MemTotal") or _physical_memory()
        limit = memory_limit(self._root)
        return total if limit is None else min(total, limit)

    def available(self) -> int:
        """Returns what the kernel estimates to be available without swapping, or what the cgroup leaves if less."""
        fields = read_fields(self._root, "proc/meminfo")
        free = fields.get("MemAvailable", fields.get("MemFree"))
        free = max(0, self.total() - self.resident()) if free is None else free
        left = memory_left(self._root)
        return free if left is None else min(free, left)

    def _resident_and_peak(self) -> tuple[int, int]:
        fields = read_fields(self._root, "proc/self/status")
        if "VmRSS" in fields:
            return fields["VmRSS"], max(fields["VmRSS"], fields.get("VmHWM", 0))
        # Without /proc the system reports only the peak, so return it for both.
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return peak, peak


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
