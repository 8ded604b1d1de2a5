"""The tag of a wheel that carries entries: as wide as what they were measured to need allows, and no wider."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.cache.filesystem.files import read_json
from opforge.cache.layout import Layout
from opforge.cache.records.entry import MANIFEST
from opforge.versions import version_of

from .spec.abi import TORCH

RUNTIMES = (
    (5, "3.4.8", "1.3.1"),
    (12, "3.4.13", "1.3.3"),
    (17, "3.4.19", "1.3.7"),
    (24, "3.4.22", "1.3.10"),
    (26, "3.4.22", "1.3.10"),
    (27, "3.4.24", "1.3.11"),
    (28, "3.4.24", "1.3.11"),
    (31, "3.4.28", "1.3.12"),
    (34, "3.4.29", "1.3.13"),
    (35, "3.4.30", "1.3.13"),
    (36, "3.4.30", "1.3.13"),
    (37, "3.4.30", "1.3.13"),
    (38, "3.4.30", "1.3.13"),
    (39, "3.4.33", "1.3.15"),
)
"""glibc 2.MINOR -> the newest GLIBCXX and CXXABI that every mainstream system with this glibc or a newer one has.

The lines are those that auditwheel tells apart, so that it agrees with our tags. Above the last one the tag is glibc's
own; a library that needs a newer libstdc++ than the last line tells gets no such promise."""
OLDEST = {"x86_64": 5}
OLDEST_ELSEWHERE = 17
"""The first glibc 2.MINOR for which there is a manylinux tag."""
EVERYWHERE = (
    "libc.so.6",
    "libm.so.6",
    "libmvec.so.1",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "ld-linux",
)
"""The libraries, by the start of their names, that a manylinux tag may take for granted."""
WITH_TORCH = ("libtorch", "libc10")
"""Those that torch has brought into the process."""


class Tag(NamedTuple):
    """A wheel's tag, and why its platform is no manylinux, where it is none."""

    python: str
    abi: str
    platform: str
    reason: str = ""


def binary_records(layer: str) -> list[Mapping[str, Any]]:
    """What the manifests of a layer say of their libraries. Raises OSError, ValueError."""
    entries = Layout(layer).path("entries")
    results = sorted(os.listdir(entries)) if os.path.isdir(entries) else []
    return [read_json(os.path.join(entries, result, MANIFEST))["binary"] for result in results]


def wheel_tag(binaries: Sequence[Mapping[str, Any]]) -> Tag:
    """The tag of a wheel with these libraries. Raises ValueError where they are for several machines."""
    machines = sorted({str(one["machine"]) for one in binaries})
    if len(machines) != 1:
        raise ValueError(f"it holds libraries for {' and '.join(machines)}, and a wheel is for one: build one for each")
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    python, abi = (own, own) if any(one["abi"] == TORCH for one in binaries) else ("py3", "none")
    foreign = sorted(_foreign(binaries))
    minor = _glibc_minor(binaries, machines[0])
    reason = f"it needs {', '.join(foreign)}, which not every system has" if foreign else ""
    if minor is None and not reason:
        reason = f"it needs a libstdc++ newer than that of glibc 2.{RUNTIMES[-1][0]}'s systems"
    platform = f"linux_{machines[0]}" if reason or minor is None else f"manylinux_2_{minor}_{machines[0]}"
    return Tag(python, abi, platform, reason)


def _foreign(binaries: Iterable[Mapping[str, Any]]) -> set[str]:
    return {name for one in binaries for name in one["needs"] if not name.startswith((*EVERYWHERE, *WITH_TORCH))}


def _glibc_minor(binaries: Sequence[Mapping[str, Any]], machine: str) -> int | None:
    """The oldest glibc 2.MINOR on whose systems all of these load; None where that cannot be promised."""
    floors = [one["floors"] for one in binaries]
    glibc, glibcxx, cxxabi = (
        max(version_of(one.get(name, "0")) for one in floors) for name in ("GLIBC", "GLIBCXX", "CXXABI")
    )
    least = max(OLDEST.get(machine, OLDEST_ELSEWHERE), glibc[1] if len(glibc) > 1 else 0)
    last, newest_glibcxx, newest_cxxabi = RUNTIMES[-1]
    if glibcxx > version_of(newest_glibcxx) or cxxabi > version_of(newest_cxxabi):
        return None
    for minor, has_glibcxx, has_cxxabi in RUNTIMES:
        if minor >= least and glibcxx <= version_of(has_glibcxx) and cxxabi <= version_of(has_cxxabi):
            return minor
    return max(least, last)
