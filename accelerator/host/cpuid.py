"""The level of the host's processor, for which code may be built."""

from __future__ import annotations

from functools import cache

from opforge.fast_path.machine import level

from .cpuinfo import read_cpuinfo


def cpu_level(root: str = "/") -> str:
    """Returns the level that code may be built for here, such as `x86-64-v3` or `aarch64`; empty if none is known."""
    return _cpu_level(root)


@cache  # it tells a call with the default from one that states it
def _cpu_level(root: str) -> str:
    reported = level() if root == "/" else None
    if reported:
        return reported
    return read_cpuinfo(root).level
