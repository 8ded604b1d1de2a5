"""The optimizer's process of ZenFlow's tests: what the training process starts, in a module that it can import."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from opforge.builders.cpu.adam import CPUAdamBuilder
from opforge.compat.deepspeed import zenflow


def load() -> tuple[Any, dict[str, Any]]:
    """Returns CPUAdam's op, and ZenFlow's functions without the beginning of their names."""
    op = CPUAdamBuilder().load()
    return op, {name.removeprefix("zenflow_adam_"): function for name, function in zenflow.functions(op).items()}


def work(groups: list[Any], control: Any, ready: Any, adamw_mode: bool) -> None:
    """Performs the steps on groups of (param, grad, grad, exp_avg, exp_avg, exp_avg_sq, exp_avg_sq, stale)."""
    op, functions = load()
    op.create_adam(7, 1e-3, 0.9, 0.999, 1e-8, 0.0, adamw_mode, False)
    handle = functions["create"](7, sorted(os.sched_getaffinity(0)))
    for tensors in groups:
        functions["register_group"](handle, *tensors)
    ready.set()
    functions["run_worker"](handle, control.data_ptr())
    functions["destroy"](handle)
    op.destroy_adam(7)


def start(groups: list[Any], control: Any, adamw_mode: bool = True) -> multiprocessing.process.BaseProcess:
    """Starts the process and waits until it is about to work."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=work, args=(groups, control, ready, adamw_mode), daemon=True)
    process.start()
    assert ready.wait(timeout=100), f"the process did not begin to work; exit code {process.exitcode}"
    return process
