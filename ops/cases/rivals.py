"""Contenders: DeepSpeed, if it is installed, and torch's operators compiled by torch.compile."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from opforge.foundation import settings
from opforge.foundation.lazy_torch import torch

from .case import MissingError, Place

DEEPSPEED, TORCH, COMPILED = "DeepSpeed", "torch", "torch.compile"
PATIENCE = 600.0
"""Seconds that a build of DeepSpeed may take."""


def deepspeed(place: Place, module: str, builder: str) -> Any:
    """Imports a module of DeepSpeed and returns it, when the op of `builder` is built. What it prints goes to stderr.

    Raises:
        MissingError: DeepSpeed is not installed, must not be measured, or fails.
    """
    if place.quick:
        raise MissingError("not with --quick: it compiles its op first, which takes half a minute")
    if settings.deepspeed() is not None:
        raise MissingError("OPFORGE_DEEPSPEED is set, so its ops would be opforge's: unset it")
    if importlib.util.find_spec("deepspeed") is None:
        raise MissingError("not installed: pip install --no-build-isolation 'opforge[deepspeed]'")
    if reason := _build_problem(builder):
        raise MissingError(reason)
    with contextlib.redirect_stdout(sys.stderr):
        return importlib.import_module(module)


def compiled(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function compiled by torch.compile, for the shapes of this case alone.

    Raises:
        MissingError: It must not be measured, since it compiles first.
    """
    if place.quick:
        raise MissingError("not with --quick: it compiles first, which takes seconds")
    torch._dynamo.reset()  # it compiles a function for a few shapes only
    made: Callable[..., Any] = torch.compile(function, dynamic=False)
    return made


@functools.cache
def _build_problem(builder: str) -> str:
    """Builds an op of DeepSpeed. Returns why that failed, or "".

    In a process of its own: torch's loader waits without end for a lock that a killed build has left.
    """
    code = f"from deepspeed.ops.op_builder import {builder}; {builder}().load()"
    command = [sys.executable, "-c", code]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return (
                f"{builder}().load() did not end within {PATIENCE:g} s: a killed build may have left a file `lock` in"
                " the folder of its extension (~/.cache/torch_extensions): remove it"
            )
        finally:
            _end(process)
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    return f"{builder}().load() failed: {lines[-1] if lines else status}" if status else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a build that still runs. Interrupted, torch's loader removes its lock; killed, it would leave it."""
    for number, seconds in ((signal.SIGINT, 10.0), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
