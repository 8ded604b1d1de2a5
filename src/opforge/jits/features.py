"""The instructions of processors: code of the host runs where all are that it was compiled for."""

from __future__ import annotations

from collections.abc import Collection

from opforge.accelerator.host.cpuinfo import read_cpuinfo
from opforge.errors.base import printable


def features() -> tuple[str, ...]:
    """Returns the instructions that this machine's processor has, in the kernel's words.

    Some JITs compile for this exact processor (-march=native). Another one of the same level may lack its instructions.
    """
    return read_cpuinfo().instructions


def lacking(needed: Collection[str]) -> str:
    """Returns in words what this machine's processor lacks of the features of another; empty if it has all."""
    missing = sorted(set(needed).difference(features()))
    shown = printable(", ".join(name[:40] for name in missing[:3]))  # others have written them
    return f"the processor lacks {shown}{' and more' if len(missing) > 3 else ''}" if missing else ""
