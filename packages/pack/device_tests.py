"""A plugin of pytest: skips a test whose parameters name a device that torch does not have here.

The tests of hub kernels name all devices that a kernel is for, and are run by variant and machine.
"""

from __future__ import annotations

from typing import Any

DEVICES = frozenset({"cuda", "mps", "xpu", "npu", "tpu", "neuron", "hpu"})
"""Types of torch's devices that a machine may lack."""


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Marks the tests. Called by pytest."""
    import pytest

    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        missing = sorted(filter(None, map(_missing, parameters.values())))
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"no {missing[0]} device is here"))


def _missing(value: object) -> str:
    """Returns the type of device that a test's parameter names and that is not here, or an empty text."""
    import torch

    name = value.type if isinstance(value, torch.device) else value.partition(":")[0] if isinstance(value, str) else ""
    if name not in DEVICES:
        return ""
    module = getattr(torch, name, None)
    return "" if module is not None and module.is_available() else name
