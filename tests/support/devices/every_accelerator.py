"""Every accelerator for the contract tests: on its own device if there is one, else over a fake device."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
from support.devices import vendor_modules

from opforge.accelerator import Accelerator, registry

EXTERNAL = sorted({point.name for point in importlib.metadata.entry_points(group=registry.GROUP)})
"""The accelerators of packages that are installed beside opforge: they are tested on their own devices only."""
ALL = (*registry.BUILT_IN, *EXTERNAL)


def make(name: str, monkeypatch: Any, tmp_path: Any) -> Accelerator:
    """Returns the accelerator of that name. Skips the test if it is another package's, and has no device."""
    accelerator: Any
    if name in EXTERNAL:
        accelerator = registry.make_accelerator(name, "the contract")
        if not accelerator.is_available():
            pytest.skip(f"{name}: {accelerator.unavailable_reason()}")
    else:
        accelerator = vendor_modules.accelerator_class(name)()
        if not accelerator.is_available():
            accelerator, _ = vendor_modules.install(name, monkeypatch, tmp_path)
            accelerator.is_fake = True
            assert accelerator.is_available(), accelerator.unavailable_reason()
    return accelerator


def is_fake(accelerator: Accelerator) -> bool:
    """Returns whether the accelerator's device is a fake one."""
    return hasattr(accelerator, "is_fake")


def torch_device(accelerator: Accelerator) -> torch.device:
    """Returns the device for the test's tensors: `meta` if the accelerator's is a fake one."""
    return torch.device("meta" if is_fake(accelerator) else accelerator.current_device_name())


def captured_graph(accelerator: Accelerator) -> object:
    """Returns a graph with one operation."""
    graph = accelerator.create_graph()
    with accelerator.capture_to_graph(graph):
        torch.ones(2, device=torch_device(accelerator)) * 2
    return graph
