"""What `build-ops` has printed, as a test reads it."""

from __future__ import annotations

import subprocess


def states(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """Returns the state and the op of each line, such as ["built", "ownops:Relu"]."""
    return [line.split()[:2] for line in done.stdout.splitlines()]


def library(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the path of the library in the last line."""
    return done.stdout.split()[-1]
