"""What every accelerator guarantees of the cost of its calls: programs make some of them in every training step.

The cost is counted in calls of Python functions, which does not depend on how busy the machine is.
`benchmarks/accelerator` measures times.
"""

from __future__ import annotations

import importlib
import os
import sys

import pytest
import torch

from opforge.accelerator import select

CALLS = {
    "communication_backend_name": (),
    "current_stream": (0,),
    "default_stream": (0,),
    "is_current_stream_capturing": (),
    "current_device": (),
    "current_device_name": (),
    "device_name": (0,),
    "set_device": (0,),
    "device": (0,),
    "synchronize": (),
    "memory_allocated": (),
    "memory_reserved": (),
    "max_memory_allocated": (),
    "memory_stats": (),
    "total_memory": (),
    "available_memory": (),
    "range_push": ("step",),
    "range_pop": (),
    "is_triton_supported": (),
    "is_fp16_supported": (),
    "is_bf16_supported": (),
    "create_graph": (),
    "stream": (None,),
    "on_accelerator": (torch.ones(1),),
    "default_generator": (0,),
    "random": (),
    "lazy_call": (int,),
    "is_synchronized_device": (),
    "get_compile_backend": (),
}
"""Method -> its arguments."""
LIMIT = 24
"""Calls of Python functions. A look-up of a package, or reading the cgroup's files, makes more."""
FOLDERS = tuple(os.path.dirname(os.path.realpath(str(file))) for file in (select.__file__, importlib.__file__))


def is_counted(file: str) -> bool:
    """Returns whether a function in this file counts: those of accelerators and importlib, not the fake devices'."""
    return file.startswith("<frozen importlib") or os.path.realpath(file).startswith(FOLDERS)


@pytest.fixture
def calls_made():
    """calls_made(function) returns the names of the Python functions that the call runs."""

    def count(function):
        names: list[str] = []

        def record(frame, event, argument):
            if event == "call" and is_counted(frame.f_code.co_filename):
                names.append(frame.f_code.co_name)

        sys.setprofile(record)
        try:
            function()
        finally:
            sys.setprofile(None)
        return names

    return count


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_looks_nothing_up_again(accelerator, name, calls_made):
    method = getattr(accelerator, name)
    method(*CALLS[name])
    method(*CALLS[name])
    names = calls_made(lambda: method(*CALLS[name]))
    assert len(names) <= LIMIT, names


@pytest.mark.parametrize("name", ["Stream", "Event", "FloatTensor", "LongTensor"])
def test_a_class_is_looked_up_once(accelerator, name, calls_made):
    first = getattr(accelerator, name)
    assert getattr(accelerator, name) is first
    assert calls_made(lambda: getattr(accelerator, name)) == []


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
