"""Selects the contenders of a task: ours must run, a rival may fail and is left out with its reason."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .targets import OURS
from .timing import Figure, Gpu, OutOfTimeError

Call = Callable[[], Any]


class AbsentError(Exception):
    """A rival does not exist. Carries the reason."""


def prepared(call: Call) -> Callable[[], Call]:
    """Returns the preparation of a contender that needs none."""
    return lambda: call


def usable(gpu: Gpu, task: str, preparations: Mapping[str, Callable[[], Call]]) -> dict[str, Call]:
    """Returns the calls of the contenders that could be prepared and called once.

    A rival that fails is left out. A failure of ours is raised.
    """
    calls = {}
    for name, prepare in preparations.items():
        try:
            call = prepare()
            call()
            gpu.wait()  # an error on the device is raised here
        except Exception as error:  # rivals raise exceptions of any kind for what they do not support
            if name == OURS:
                raise
            gpu.leave_out(task, name, reason(error))
            continue
        calls[name] = call
    return calls


def run_task(gpu: Gpu, task: str, measure: Callable[[], list[Figure]]) -> list[Figure]:
    """Returns the task's figures. If it fails, notes its traceback and returns none, so that other tasks still run."""
    try:
        return measure()
    except OutOfTimeError:
        raise
    except Exception:
        gpu.failed[task] = traceback.format_exc()
        return []


def reason(error: Exception) -> str:
    """Returns why a contender takes no part, in one line."""
    lines = str(error).strip().splitlines()
    first_line = lines[0][:200] if lines else type(error).__name__
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("liger_kernel"):
        return "not installed: pip install liger-kernel"
    return first_line if isinstance(error, AbsentError) else f"{type(error).__name__}: {first_line}"


def captured(call: Call) -> Call:
    """Captures a call's work in a CUDA graph. Returns the graph's replay."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay(_call: Call = call) -> None:  # keeps the call's tensors alive: the graph writes to them
        graph.replay()

    return replay
