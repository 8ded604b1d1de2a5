"""Names of C++ functions as they are written in sources, in place of those that the linker uses."""

from __future__ import annotations

from collections.abc import Iterable

MAX_SECONDS, MAX_KILOBYTES = 5, 500_000
"""Limits for the program that translates: a name of a damaged or hostile file may expand to gigabytes."""
MAX_LENGTH = 300
"""The number of characters of a translated name that are kept."""


def demangled(names: Iterable[str]) -> dict[str, str]:
    """Returns each name with its translation by c++filt (binutils); itself if it has none, or c++filt is missing."""
    import subprocess

    names = list(names)
    mangled = [name for name in dict.fromkeys(names) if name.startswith("_Z") and name.isprintable()]
    same = {name: name for name in names}
    if not mangled:
        return same
    command = ["sh", "-c", f"ulimit -v {MAX_KILOBYTES}; exec c++filt"]
    try:
        process = subprocess.run(
            command, input="\n".join(mangled), capture_output=True, text=True, timeout=MAX_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeError):
        return same
    lines = process.stdout.splitlines()
    if process.returncode or len(lines) != len(mangled):
        return same
    return same | {name: line[:MAX_LENGTH] for name, line in zip(mangled, lines, strict=True)}
