"""The tag of a wheel that holds built ops: the widest one that the needs of its libraries allow."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.cache.layout import Layout
from opforge.fast_path.library import RECORD
from opforge.foundation.files import read_json
from opforge.foundation.versions import version_of

from .declaration.abi import TORCH

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
"""(glibc 2.MINOR, GLIBCXX, CXXABI): the newest of the two that every mainstream system with at least this glibc has.

The steps are auditwheel's, so that it agrees with these tags. Above the last step the tag is that of the library's own
glibc. A library that needs a newer libstdc++ than the last step's gets no manylinux tag.
"""
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
"""Prefixes of the libraries that every system with a manylinux tag has."""
MACHINE = re.compile(r"(x86_64|aarch64|i686|armv7l|ppc64le|s390x|riscv64|arm64|amd64)$")
GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_")
WITH_TORCH = ("libtorch", "libc10")
"""Prefixes of the libraries that torch has loaded already."""


class Tag(NamedTuple):
    """A wheel's tag, and why its platform is not manylinux; `reason` is empty if it is."""

    python: str
    abi: str
    platform: str
    reason: str = ""


def records_of(layer: str) -> list[Mapping[str, Any]]:
    """Returns the records of the entries in a layer. Raises OSError, ValueError."""
    entries = Layout(layer).path("entries")
    keys = sorted(os.listdir(entries)) if os.path.isdir(entries) else []
    return [read_json(os.path.join(entries, key, RECORD)) for key in keys]


def wheel_tag(binaries: Sequence[Mapping[str, Any]]) -> Tag:
    """Returns the tag of a wheel with these libraries. Raises ValueError if they are for several machines."""
    machines = sorted({str(binary["machine"]) for binary in binaries})
    if len(machines) != 1:
        raise ValueError(
            f"it holds libraries for {' and '.join(machines)}, and a wheel is for one: build one wheel for each"
        )
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    python, abi = (own, own) if any(binary["abi"] == TORCH for binary in binaries) else ("py3", "none")
    foreign = sorted(_foreign(binaries))
    minor = _glibc_minor(binaries, machines[0])
    reason = f"it needs {', '.join(foreign)}, which not every system has" if foreign else ""
    if minor is None and not reason:
        reason = f"it needs a libstdc++ newer than that of glibc 2.{RUNTIMES[-1][0]}'s systems"
    platform = f"linux_{machines[0]}" if reason or minor is None else f"manylinux_2_{minor}_{machines[0]}"
    return Tag(python, abi, platform, reason)


def _foreign(binaries: Iterable[Mapping[str, Any]]) -> set[str]:
    """Returns the libraries needed that not every system has."""
    needs = (name for binary in binaries for name in binary["needs"])
    return {name for name in needs if not name.startswith((*EVERYWHERE, *WITH_TORCH))}


def _glibc_minor(binaries: Sequence[Mapping[str, Any]], machine: str) -> int | None:
    """Returns the oldest glibc 2.MINOR on whose systems all of these load, or None if there is none."""
    floors = [binary["floors"] for binary in binaries]
    glibc, glibcxx, cxxabi = (
        max(version_of(floor.get(name, "0")) for floor in floors) for name in ("GLIBC", "GLIBCXX", "CXXABI")
    )
    least = max(OLDEST.get(machine, OLDEST_ELSEWHERE), glibc[1] if len(glibc) > 1 else 0)
    last, newest_glibcxx, newest_cxxabi = RUNTIMES[-1]
    if glibcxx > version_of(newest_glibcxx) or cxxabi > version_of(newest_cxxabi):
        return None
    for minor, has_glibcxx, has_cxxabi in RUNTIMES:
        if minor >= least and glibcxx <= version_of(has_glibcxx) and cxxabi <= version_of(has_cxxabi):
            return minor
    return max(least, last)


def combined(wheel: Tag, ops: Tag) -> Tag:
    """Returns the tag of what both a wheel's other libraries and its ops need.

    Raises ValueError if they are for two machines.
    """
    any_python = wheel.python in ("py3", "py2.py3")
    python = ops.python if any_python or ops.python != "py3" else wheel.python
    if wheel.platform == "any":
        return Tag(python, ops.abi, ops.platform)
    machine, own = (_machine_of(platform) for platform in (wheel.platform, ops.platform))
    if machine != own:
        raise ValueError(f"it is for {machine}, and its ops are for {own}")
    platform = max(wheel.platform, ops.platform, key=_glibc)
    return Tag(*(wheel if ops.abi == "none" else ops)[:2], platform)


def _glibc(platform: str) -> tuple[float, ...]:
    """Returns the oldest version of glibc that a platform is for, to compare; the highest if it names none."""
    match = GLIBC.match(platform)
    return (int(match[1]), int(match[2])) if match else (math.inf,)


def _machine_of(platform: str) -> str:
    match = MACHINE.search(platform)
    return match[1] if match else platform
