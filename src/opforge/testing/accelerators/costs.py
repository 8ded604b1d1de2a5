"""Tests of every accelerator: the cost of its calls. Programs make some of them in every training step.

The cost is counted in calls of Python functions, which does not depend on how busy the machine is.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch

from opforge.accelerator import select

from .tested import AcceleratorTests

CALLS: dict[str, tuple[Any, ...]] = {
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
CLASSES = ("Stream", "Event", "FloatTensor", "LongTensor")


class CostTests(AcceleratorTests):
    """The tests of cost."""

    def calls_of(self, function: Callable[[], object]) -> list[str]:
        """Returns the names of the Python functions that a call runs: those of accelerators, and of importlib."""
        classes = [kind for kind in type(self.accelerator).__mro__ if kind is not object]
        files = [str(getattr(sys.modules.get(kind.__module__), "__file__", "")) for kind in classes]
        files += [str(select.__file__), str(importlib.__file__)]
        folders = tuple({os.path.dirname(os.path.realpath(file)) + os.sep for file in files if file})
        names: list[str] = []

        def record(frame: FrameType, event: str, argument: object) -> None:
            file = frame.f_code.co_filename
            if event == "call" and (file.startswith("<frozen importlib") or os.path.realpath(file).startswith(folders)):
                names.append(frame.f_code.co_name)

        before, collects = sys.getprofile(), gc.isenabled()
        gc.disable()  # a collection runs finalizers of anything: what these import would be counted
        sys.setprofile(record)
        try:
            function()
        finally:
            sys.setprofile(before)
            if collects:
                gc.enable()
        return names

    def test_a_repeated_call_looks_nothing_up_again(self) -> None:
        for name, arguments in CALLS.items():
            method = getattr(self.accelerator, name)
            method(*arguments)
            method(*arguments)
            names = self.calls_of(partial(method, *arguments))
            assert len(names) <= LIMIT, (
                f"the third call of {name} runs {len(names)} functions, expected at most {LIMIT}, because programs"
                f" call it in every step: {', '.join(names)}"
            )

    def test_a_class_is_looked_up_once(self) -> None:
        for name in CLASSES:
            first, second = getattr(self.accelerator, name), getattr(self.accelerator, name)
            assert first is second, f"{name} is another object each time: isinstance() and caches by class then fail"
            names = self.calls_of(partial(getattr, self.accelerator, name))
            assert names == [], f"reading {name} again runs {', '.join(names)}, expected a stored attribute"
