"""The limits that control groups set on this process: memory, processor time and processes, in version 1 and 2.

A limit applies to all groups below it, so every group from the process's own up to the top of the mount is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import NamedTuple

from .files import read_fields, read_number, read_text


class MemoryLimit(NamedTuple):
    """The limit of one control group that contains this process."""

    size: int
    """Bytes that the processes of the group may use together."""
    folder: str
    """The group's folder, relative to the root, as are the names of files in it below."""
    used_file: str
    cache_field: str
    """The line of memory.stat with the bytes of page cache that the kernel can drop."""

    def left(self, root: str = "/") -> int:
        """Returns the bytes that the group has left. Page cache that the kernel can drop counts as free."""
        used = read_number(root, f"{self.folder}/{self.used_file}") or 0
        cache = read_fields(root, f"{self.folder}/memory.stat").get(self.cache_field, 0)
        return max(0, self.size - max(0, used - cache))


def memory_limits(root: str = "/") -> list[MemoryLimit]:
    """Returns the limits that apply to this process; empty if there is none."""
    limits = []
    for folder in _folders(root, "memory"):
        for limit_file, used_file, cache_field in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            size = read_number(root, f"{folder}/{limit_file}")
            # Version 1 writes "no limit" as the largest page-aligned number.
            if size is not None and size < 1 << 62:
                limits.append(MemoryLimit(size, folder, used_file, cache_field))
    return limits


def memory_left(root: str = "/") -> int | None:
    """Returns the bytes left of the tightest limit. None if there is no limit."""
    return min((limit.left(root) for limit in memory_limits(root)), default=None)


def cpu_quota(root: str = "/") -> float | None:
    """Returns the limit of processor time, in cores (1.5: one and a half). None if there is no limit."""
    quotas = []
    for folder in _folders(root, "cpu"):
        quota, _, period = (read_text(root, f"{folder}/cpu.max") or "").partition(" ")
        if quota.isdecimal() and period.strip().isdecimal():
            quotas.append(int(quota) / int(period))
        quota_us = read_number(root, f"{folder}/cpu.cfs_quota_us")
        period_us = read_number(root, f"{folder}/cpu.cfs_period_us")
        if quota_us is not None and period_us and quota_us > 0:
            quotas.append(quota_us / period_us)
    return min(quotas, default=None)


def processes_left(root: str = "/") -> int | None:
    """Returns how many processes and threads may be started until the tightest limit. None if there is no limit."""
    left = [
        max(0, limit - (read_number(root, f"{folder}/pids.current") or 0))
        for folder in _folders(root, "pids")
        if (limit := read_number(root, f"{folder}/pids.max")) is not None
    ]
    return min(left, default=None)


def cap_cores(count: int, quota: float | None) -> int:
    """Returns how many of `count` cores a quota can keep busy: rounded up, at least one."""
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def _folders(root: str, controller: str) -> Iterator[str]:
    """Yields the folders, relative to root, of the process's group and of those above it, in this order."""
    mounts = _mounts(root)
    for line in (read_text(root, "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        key = "" if hierarchy == "0" and not controllers else controller
        if key and key not in controllers.split(","):
            continue
        top, mount = mounts.get(key, ("/", f"sys/fs/cgroup/{key}".rstrip("/")))
        yield from _upwards(mount, _below(top, path))


def _mounts(root: str) -> dict[str, tuple[str, str]]:
    """Returns, by controller ('' for version 2), the group that is mounted and its mount point."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in (read_text(root, "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        mount = (fields[3], fields[4].lstrip("/"))
        if kinds[0] == "cgroup2":
            mounts.setdefault("", mount)
        elif kinds[0] == "cgroup":
            for option in kinds[2].split(","):
                mounts.setdefault(option, mount)
    return mounts


def _below(top: str, path: str) -> str:
    """Returns the group's path below the mounted group. '' if it is not below it, as in some containers."""
    if top == "/":
        below = path
    elif path == top or path.startswith(f"{top}/"):
        below = path[len(top) :]
    else:
        below = ""
    return "" if ".." in below.split("/") else below.strip("/")


def _upwards(mount: str, below: str) -> Iterator[str]:
    while below:
        yield f"{mount}/{below}"
        below = os.path.dirname(below)
    yield mount
