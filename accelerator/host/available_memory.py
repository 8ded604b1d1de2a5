"""The memory available to new processes: the machine's free memory, within the limits of control groups."""

from __future__ import annotations

from . import cgroup
from .files import field, read_text


def memory_left(root: str = "/") -> int | None:
    """Returns the bytes that are left of the tightest limit and on the machine; None if neither is known.

    What the kernel keeps of files and can drop counts as left.
    """
    free = field(read_text(root, "proc/meminfo"), "MemAvailable")
    return min((left for left in (cgroup.memory_left(root), free) if left is not None), default=None)
