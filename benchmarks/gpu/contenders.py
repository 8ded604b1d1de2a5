"""Who takes part in a task: ours must, a rival may fail and is left out with its reason."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .targets import OURS
from .timing import Figure, Gpu, OutOfTimeError

Call = Callable[[], Any]


class AbsentError(Exception):
    """There is no such rival; says why."""


def ready(call: Call) -> Callable[[], Call]:
    """A contender that needs no preparation."""
    return lambda: call


def taking_part(gpu: Gpu, task: str, offered: Mapping[str, Callable[[], Call]]) -> dict[str, Call]:
    """The contenders whose call could be made and was made once. A rival that fails is left out; ours may not fail."""
    calls = {}
    for name, prepare in offered.items():
        try:
            call = prepare()
            call()
            gpu.wait()  # what fails on the device is told here
        except Exception as problem:  # whatever a rival does not support, it says in its own way
            if name == OURS:
                raise
            gpu.leave_out(task, name, reason(problem))
            continue
        calls[name] = call
    return calls


def alone(gpu: Gpu, task: str, make: Callable[[], list[Figure]]) -> list[Figure]:
    """The task's figures; none where it fails, which is kept: the others are measured all the same."""
    try:
        return make()
    except OutOfTimeError:
        raise
    except Exception:
        gpu.failed[task] = traceback.format_exc()
        return []


def reason(problem: Exception) -> str:
    """Why a contender takes no part, in a line."""
    lines = str(problem).strip().splitlines()
    said = lines[0][:200] if lines else type(problem).__name__
    if isinstance(problem, ModuleNotFoundError) and (problem.name or "").startswith("liger_kernel"):
        return "not installed: pip install liger-kernel"
    return said if isinstance(problem, AbsentError) else f"{type(problem).__name__}: {said}"


def captured(call: Call) -> Call:
    """The call's work in a CUDA graph: its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay(_kept: Call = call) -> None:  # the graph writes to the call's tensors, which must not go
        graph.replay()

    return replay
