"""A plugin of pytest: skips a test whose parameters name a device that torch does not have here, and notes the longest.

The tests of hub kernels name all devices that a kernel is for, and are run by variant and machine.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

NOTES = "_OPFORGE_TRIED_TESTS"
"""The variable that names the file of notes."""
_longest: tuple[str, float] = ("", 0.0)
_began = 0.0
DEVICES = frozenset({"cuda", "mps", "xpu", "npu", "tpu", "neuron", "hpu"})
"""Types of torch's devices that a machine may lack."""


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Marks the tests. Called by pytest."""
    import pytest

    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if missing := sorted(filter(None, map(_missing, parameters.values()))):
            item.add_marker(pytest.mark.skip(reason=f"no {missing[0]} device is here"))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Notes which test runs: it may be the one that does not end. Called by pytest."""
    global _began
    _began = time.monotonic()
    _note(nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Notes how long a test took. Called by pytest."""
    global _longest
    _longest = max(_longest, (nodeid, time.monotonic() - _began), key=lambda test: test[1])
    _note("")


def _note(running: str) -> None:
    if NOTES in os.environ:
        with open(os.environ[NOTES], "w", encoding="utf-8") as file:
            json.dump({"running": running, "longest": _longest}, file)


def _missing(value: object) -> str:
    """Returns the type of device that a test's parameter names and that is not here, or an empty text."""
    import torch

    name = value.type if isinstance(value, torch.device) else value.partition(":")[0] if isinstance(value, str) else ""
    if name not in DEVICES:
        return ""
    module = getattr(torch, name, None)
    return "" if module is not None and module.is_available() else name
