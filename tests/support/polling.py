"""Waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], Any], seconds: float = 30, reason: str = "") -> Any:
    """Returns the result of `condition` as soon as it is true. Raises AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s in vain{': ' + reason if reason else ''}")
