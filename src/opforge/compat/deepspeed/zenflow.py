"""ZenFlow's functions of DeepSpeed's CPU Adam op, over opforge's op: Adam steps that another process performs.

The training process submits a step and later waits for it. The optimizer's process runs `zenflow_adam_run_worker`,
which performs each step with `adam_update`, so the results are those of `adam_update` bit for bit. Both processes map
one block of shared memory: two semaphores, and the numbers of the step. Only opforge's functions can read the block,
so both processes must run on opforge.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

MAX_GROUPS = 1024
"""The most parameter groups of one optimizer, as in DeepSpeed: the size of the block does not depend on them."""
STEP, EXIT = 1, 2
TAG = int.from_bytes(b"opforge1", "little")
ATTACH_SECONDS = 30.0
"""After this time a submitted step that no opforge worker has seen is an error."""
PARENT_CHECK_SECONDS = 5.0
NUMBERS = ("lr", "beta1", "beta2", "eps", "weight_decay")


class _Semaphore(ctypes.Structure):
    _fields_ = (("memory", ctypes.c_uint64 * 8),)  # sem_t has 32 bytes in glibc and musl on 64-bit machines


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Control(ctypes.Structure):
    """The block of shared memory."""

    _fields_ = (
        # Stays zero. A worker of DeepSpeed's own op would wait here for a semaphore that nobody posts, and change
        # nothing. If our semaphore were here, that worker would take the numbers below for its own.
        ("unused", _Semaphore),
        ("tag", ctypes.c_uint64),
        ("requested", _Semaphore),
        ("finished", _Semaphore),
        ("attached", ctypes.c_uint32),
        ("command", ctypes.c_uint32),
        ("state", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("first_submit", ctypes.c_double),
        ("numbers", ctypes.c_double * len(NUMBERS) * MAX_GROUPS),
        ("bias_correction", ctypes.c_uint8 * MAX_GROUPS),
    )


class _Group(NamedTuple):
    """The tensors of one parameter group. Gradients and states have two buffers each, which the steps alternate."""

    param: Tensor
    grads: tuple[Tensor, Tensor]
    exp_avgs: tuple[Tensor, Tensor]
    exp_avg_sqs: tuple[Tensor, Tensor]
    stale: Tensor | None
    """Gets a copy of the new parameters."""


class _Optimizer(NamedTuple):
    number: int
    cores: frozenset[int]
    groups: list[_Group]


_optimizers: dict[int, _Optimizer] = {}
_handles = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> bool:
    """Calls a function of semaphores. Returns False if its time is up; a signal's handler runs before the next try."""
    while getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        if code == errno.ETIMEDOUT:
            return False
        if code != errno.EINTR:
            raise OSError(code, f"{name}: {os.strerror(code)}")
    return True


def _post(semaphore: _Semaphore) -> None:
    _call("sem_post", ctypes.byref(semaphore))


def _wait(semaphore: _Semaphore, seconds: float) -> bool:
    """Returns whether the semaphore was posted within that time."""
    deadline = time.time() + max(seconds, 0.0)
    limit = _Timespec(int(deadline), int(deadline % 1 * 1e9))
    return _call("sem_timedwait", ctypes.byref(semaphore), ctypes.byref(limit))


def _control(address: int) -> _Control:
    """Returns the block at an address. Raises RuntimeError if opforge did not initialize it."""
    control = _Control.from_address(address)
    if control.tag != TAG:
        raise RuntimeError(
            "ZenFlow's control block is not opforge's, expected one from opforge's zenflow_adam_ctrl_init: one process "
            "runs DeepSpeed's own op. Set OPFORGE_DEEPSPEED=1 before both are started"
        )
    return control


def _optimizer(handle: int) -> _Optimizer:
    if handle not in _optimizers:
        raise ValueError(f"handle {handle} is unknown, expected one that zenflow_adam_create returned in this process")
    return _optimizers[handle]


def create(op: Any, optimizer_id: int, zf_affinity: Sequence[int]) -> int:
    """Returns a handle for a worker of the optimizer `optimizer_id`, which computes on the cores `zf_affinity`."""
    handle = next(_handles)
    _optimizers[handle] = _Optimizer(optimizer_id, frozenset(zf_affinity), [])
    return handle


def register_group(
    op: Any,
    handle: int,
    param: Tensor,
    grad0: Tensor,
    grad1: Tensor,
    exp_avg0: Tensor,
    exp_avg1: Tensor,
    exp_avg_sq0: Tensor,
    exp_avg_sq1: Tensor,
    stale: Tensor | None,
) -> None:
    """Adds a parameter group; `stale` gets a copy of the new parameters after each step, if it is not None."""
    group = _Group(param, (grad0, grad1), (exp_avg0, exp_avg1), (exp_avg_sq0, exp_avg_sq1), stale)
    _optimizer(handle).groups.append(group)


def destroy(op: Any, handle: int) -> None:
    """Forgets a worker and its tensors. An unknown handle is not an error."""
    _optimizers.pop(handle, None)


def ctrl_size(op: Any) -> int:
    """Returns the bytes of shared memory that the control block needs."""
    return ctypes.sizeof(_Control)


def ctrl_init(op: Any, control_ptr: int, num_groups: int) -> None:
    """Initializes the control block at an address, before the optimizer's process is started."""
    if not 0 <= num_groups <= MAX_GROUPS:
        raise ValueError(f"num_groups is {num_groups}, expected at most {MAX_GROUPS}: use larger parameter groups")
    ctypes.memset(control_ptr, 0, ctypes.sizeof(_Control))
    control = _Control.from_address(control_ptr)
    for semaphore in (control.requested, control.finished):
        _call("sem_init", ctypes.byref(semaphore), 1, 0)
    control.groups, control.tag = num_groups, TAG


def submit(
    op: Any,
    control_ptr: int,
    now_state: int,
    step: int,
    lr: Sequence[float],
    beta1: Sequence[float],
    beta2: Sequence[float],
    eps: Sequence[float],
    weight_decay: Sequence[float],
    bias_correction: Sequence[int],
) -> None:
    """Requests one step, with one number for each group in each list. `now_state` selects the buffers: 0 or 1."""
    control = _control(control_ptr)
    columns = dict(zip(NUMBERS, (lr, beta1, beta2, eps, weight_decay), strict=True))
    for name, column in {**columns, "bias_correction": bias_correction}.items():
        if len(column) != control.groups:
            raise ValueError(f"{name} has {len(column)} numbers, expected {control.groups}: one for each group")
    for index, numbers in enumerate(zip(*columns.values(), strict=True)):
        control.numbers[index][:] = [float(number) for number in numbers]
        control.bias_correction[index] = bool(bias_correction[index])
    control.state, control.step, control.command = now_state, step, STEP
    control.first_submit = control.first_submit or time.monotonic()
    _post(control.requested)


def wait(op: Any, control_ptr: int, timeout_s: float) -> bool:
    """Returns True if a step has finished, False if none has within `timeout_s` seconds.

    Raises RuntimeError if a step was submitted and the optimizer's process does not run on opforge.
    """
    control = _control(control_ptr)
    if _wait(control.finished, timeout_s):
        return True
    if control.first_submit and not control.attached and time.monotonic() - control.first_submit > ATTACH_SECONDS:
        raise RuntimeError(
            f"no opforge worker has taken ZenFlow's step within {ATTACH_SECONDS:.0f} s, expected one in the "
            "optimizer's process: it died, or it runs DeepSpeed's own op. Set OPFORGE_DEEPSPEED=1 before the training "
            "process is started"
        )
    return False


def ctrl_exit(op: Any, control_ptr: int) -> None:
    """Makes the worker return."""
    control = _control(control_ptr)
    control.command = EXIT
    _post(control.requested)


def run_worker(op: Any, handle: int, control_ptr: int) -> None:
    """Performs the submitted steps until `zenflow_adam_ctrl_exit`, or until the process that started this one ends."""
    import torch

    control, optimizer = _control(control_ptr), _optimizer(handle)
    if len(optimizer.groups) != control.groups:
        raise RuntimeError(f"{len(optimizer.groups)} groups are registered, expected {control.groups}: register each")
    parent = multiprocessing.parent_process()
    control.attached = 1
    with _on_cores(optimizer.cores), torch.no_grad():
        while True:
            while not _wait(control.requested, PARENT_CHECK_SECONDS):
                if parent is not None and not parent.is_alive():
                    return
            if control.command == EXIT:
                return
            for index, group in enumerate(optimizer.groups):
                _step(op, optimizer.number, group, control, index)
            _post(control.finished)


def _step(op: Any, number: int, group: _Group, control: _Control, index: int) -> None:
    lr, beta1, beta2, eps, weight_decay = control.numbers[index]
    now = control.state
    op.adam_update(
        number,
        control.step,
        lr,
        beta1,
        beta2,
        eps,
        weight_decay,
        bool(control.bias_correction[index]),
        group.param,
        group.grads[now],
        group.exp_avgs[now],
        group.exp_avg_sqs[now],
    )
    if group.stale is not None:
        group.stale.copy_(group.param)


@contextlib.contextmanager
def _on_cores(cores: frozenset[int]) -> Iterator[None]:
    """Binds the calling thread, and the threads that torch starts for it, to those of the cores that are allowed."""
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    if allowed := cores & before:
        os.sched_setaffinity(0, allowed)
        torch.set_num_threads(len(allowed))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def functions(op: Any) -> dict[str, Any]:
    """Returns ZenFlow's functions for a loaded op. There are none where processes cannot share semaphores."""
    if sys.platform != "linux":
        return {}
    worker = (create, register_group, destroy, run_worker)
    training = (ctrl_size, ctrl_init, submit, wait, ctrl_exit)
    return {f"zenflow_adam_{function.__name__}": partial(function, op) for function in (*worker, *training)}
