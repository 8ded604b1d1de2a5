"""How many files the memory figures of the CPU's accelerator read: programs call them in every step."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_the_cpus_memory_figures_read_one_file_each(monkeypatch):
    from opforge.accelerator import CPUAccelerator
    from opforge.accelerator.host import cgroup

    monkeypatch.setattr(cgroup, "memory_limits", lambda root="/": [])
    accelerator, opened = CPUAccelerator(), []
    accelerator.mem_get_info()
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(path) or real_open(path, *rest))
    for name, files in {
        "memory_allocated": ["/proc/self/statm"],
        "max_memory_allocated": ["/proc/self/status"],
        "memory_stats": ["/proc/self/status"],
        "total_memory": [],
    }.items():
        getattr(accelerator, name)()
        assert opened == files, name
        opened.clear()
