"""Every accelerator for the contract tests: on its own device if there is one, else over a fake device."""

from __future__ import annotations

from typing import Any

import torch
from support.devices import vendor_modules

from opforge.accelerator import Accelerator, registry

ALL = tuple(registry.BUILT_IN)


def make(name: str, monkeypatch: Any, tmp_path: Any) -> Accelerator:
    """Returns the accelerator of that name."""
    accelerator: Any = vendor_modules.accelerator_class(name)()
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
