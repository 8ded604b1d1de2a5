"""Pauses of random length: many nodes must not come back at the same moment."""

from __future__ import annotations

import random
import time


def pause(shortest: float, longest: float) -> None:
    """Sleeps for a random number of seconds."""
    time.sleep(random.uniform(shortest, longest))  # noqa: S311  # nothing secret depends on it
