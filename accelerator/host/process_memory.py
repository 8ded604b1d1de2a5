"""What this process takes of the host's memory, and what the machine and the cgroup leave it; in bytes."""

from __future__ import annotations

import os

from .cgroup import memory_left, memory_limit
from .files import read_fields


class ProcessMemory:
    """The process's resident set, its peak, and the memory it may have.

    The peak is the kernel's own (VmHWM), so nothing between two calls is missed. Resetting it needs a kernel that lets
    the process write /proc/self/clear_refs; where it does not, the peak after a reset is exact if it is higher than
    any before the reset, and otherwise the largest resident set that was seen by a call since.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._stale_peak = -1
        self._seen = 0

    def resident(self) -> int:
        """Give the resident set's size."""
        return self._resident_and_peak()[0]

    def peak(self) -> int:
        """Give the resident set's largest size since the start or the last reset."""
        resident, peak = self._resident_and_peak()
        self._seen = max(self._seen, resident)
        return peak if peak > self._stale_peak else self._seen

    def reset_peak(self) -> None:
        """Let the peak start from the present size."""
        try:
            handle = os.open(os.path.join(self._root, "proc/self/clear_refs"), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, b"5")
            finally:
                os.close(handle)
            self._stale_peak = -1
        except OSError:
            self._seen, self._stale_peak = self._resident_and_peak()

    def total(self) -> int:
        """Give the machine's memory, or the cgroup's limit where that is lower."""
        total = read_fields(self._root, "proc/meminfo").get("MemTotal") or _physical_memory()
        limit = memory_limit(self._root)
        return total if limit is None else min(total, limit)

    def available(self) -> int:
        """Give what can be had without swapping, by the kernel's estimate, or what the cgroup leaves if less."""
        fields = read_fields(self._root, "proc/meminfo")
        free = fields.get("MemAvailable", fields.get("MemFree"))
        free = max(0, self.total() - self.resident()) if free is None else free
        left = memory_left(self._root)
        return free if left is None else min(free, left)

    def _resident_and_peak(self) -> tuple[int, int]:
        fields = read_fields(self._root, "proc/self/status")
        if "VmRSS" in fields:
            return fields["VmRSS"], max(fields["VmRSS"], fields.get("VmHWM", 0))
        # Without /proc only the peak is to be had from the system; it stands for both.
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return peak, peak


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
