"""Fixtures for tests of accelerators: no choice is carried over, and other packages can be faked."""

from __future__ import annotations

import sys

import pytest
from support.devices import vendor_modules

from opforge.accelerator import registry, select
from opforge.accelerator.entry_points import EntryPoint
from opforge.accelerator.vendors import nvml


@pytest.fixture(autouse=True)
def fresh_process():
    """The test begins like a new process: no accelerator is chosen, and NVML is not started."""
    select.reset()
    nvml.reset()
    yield
    select.reset()
    nvml.reset()


@pytest.fixture
def no_devices(monkeypatch):
    """A machine on which no driver is installed, no package adds accelerators, and no variable names one."""
    for variable in ("OPFORGE_ACCELERATOR", "DS_ACCELERATOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    monkeypatch.setattr(select, "DRIVER_FILES", dict.fromkeys(select.DRIVER_FILES, ()))


@pytest.fixture
def add_accelerator(no_devices, tmp_path, monkeypatch):
    """Adds an accelerator as the package `quick-pkg 2.0` would: add_accelerator("quick", source of its module)."""
    monkeypatch.syspath_prepend(str(tmp_path))
    points = []
    monkeypatch.setattr(registry, "entry_points", lambda group: points)

    def add(name: str, source: str, attribute: str = "Quick") -> str:
        module = f"other_{name}_{len(points)}"
        (tmp_path / f"{module}.py").write_text(source)
        points.append(EntryPoint(registry.GROUP, name, f"{module}:{attribute}", f"{name}-pkg 2.0"))
        return module

    yield add
    for module in [module for module in sys.modules if module.startswith("other_")]:
        del sys.modules[module]


@pytest.fixture
def cuda_machine(monkeypatch, tmp_path):
    """A machine with two NVIDIA GPUs, CUDA not started and no NVML: (accelerator, its fake device)."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    accelerator, device = vendor_modules.install("cuda", monkeypatch, tmp_path)
    monkeypatch.setattr(device.module, "is_initialized", lambda: False)
    return accelerator, device
