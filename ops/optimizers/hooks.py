"""Torch's wrapper of an optimizer's step, left out if it would have no effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import torch
import torch.optim.optimizer as torch_optimizer
from torch.optim import Optimizer

P = ParamSpec("P")
R = TypeVar("R")


def wrapped_if_observed(func: Callable[P, R]) -> Callable[P, R]:
    """Returns an optimizer's `step`, in torch's wrapper whenever that has something to do.

    The wrapper calls the hooks, and records the step for a profiler. It takes 8 us, as long as the step of a small
    parameter without it.
    """
    wrapped = Optimizer.profile_hook_step(func)

    @wraps(func)
    def step(*args: P.args, **kwargs: P.kwargs) -> R:
        optimizer = cast(Optimizer, args[0])
        return (wrapped if is_observed(optimizer) else func)(*args, **kwargs)

    return step


def is_observed(optimizer: Optimizer) -> bool:
    """Returns whether the optimizer's step has hooks, of its own or of all optimizers, or a profiler is running.

    True within torch.compile, which compiles the call for later ones, that may have hooks; and in a torch that names
    one of these otherwise: most of the names are private.
    """
    try:
        return bool(
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
            or torch._C._autograd._profiler_enabled()
            or torch.compiler.is_compiling()
        )
    except AttributeError:
        return True
