"""Why a group failed: the record that kernels write into the shared memory, and its text."""

from __future__ import annotations

import ctypes
from typing import Any

from opforge.errors import GroupError

from .dtypes import NAMES, OPERATIONS

FAILED, CLOSED = -1, -2
"""Return values of the op; other numbers are the system's."""
KINDS = ("", "barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send")
"""In the order of Kind in ops/csrc/shm/collectives.h."""
CODES = ("", "late", "ended", "left", "disagree", "disagree", "disagree")
"""In the order of FailureCode in ops/csrc/shm/layout.h."""
SPLITS, MESSAGE = 5, 6


class Call(ctypes.Structure):
    """The call of a rank; `Call` of layout.h."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("kind", "dtype", "op", "root")),
        *((name, ctypes.c_uint64) for name in ("count", "tag")),
    ]

    def __str__(self) -> str:
        kind = KINDS[self.kind]
        if kind == "barrier":
            return kind
        text = f"{kind} of {self.count} {NAMES[self.dtype]}"
        if kind in ("all_reduce", "reduce_scatter"):
            text += f" with {OPERATIONS[self.op]}"
        if kind == "broadcast":
            text += f" from rank {self.root}"
        return text + (f" with tag {self.tag}" if self.tag else "")


class Failure(ctypes.Structure):
    """`Failure` of layout.h."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("code", "reporter", "rank", "process")),
        *((name, Call) for name in ("expected", "actual")),
    ]


def error(op: Any, handle: int, rank: int, size: int, timeout: float) -> GroupError:
    """Returns the error for a group that has failed."""
    failure = Failure()
    if not op.shm_failure(handle, ctypes.byref(failure)):  # it is being written, or its writer was killed
        return GroupError(rank, size, "ended", None, "a rank ended while it reported a failure", AGAIN)
    reporter = "this rank" if failure.reporter == rank else f"rank {failure.reporter}"
    peer = "this rank" if failure.rank == rank else f"rank {failure.rank}"
    process, reason = f"process {failure.process}", CODES[failure.code]
    during = KINDS[failure.expected.kind] or "the group's creation"
    if reason == "late":
        problem = f"{peer} ({process}) did not come to {during} within the timeout of {reporter}"
        if failure.reporter == rank:
            problem += f", {timeout:g} seconds"
        advice = "Find out what that rank waits for, or raise the group's timeout. " + AGAIN
    elif reason == "ended":
        problem, advice = f"{peer} ({process}) has ended during {during}", f"See why it ended. {AGAIN}"
    elif reason == "left":
        problem, advice = f"{peer} ({process}) has left the group, and {reporter} waits for it in {during}", SAME
    elif failure.code == SPLITS:
        problem = (
            f"{peer} sends {failure.actual.count} {NAMES[failure.actual.dtype]} in all_to_all to {reporter}, which "
            f"expects {failure.expected.count}"
        )
        advice = SAME
    elif failure.code == MESSAGE:
        problem = f"{peer} called {failure.actual}, and {reporter} receives another size or dtype: {failure.expected}"
        advice = SAME
    else:
        problem, advice = f"{reporter} called {failure.expected}, and {peer} called {failure.actual}", SAME
    return GroupError(rank, size, reason, failure.rank, problem, advice)


AGAIN = "This group cannot be used any more: start the ranks again, or make a new group"
SAME = "All ranks must make the same calls in the same order. This group cannot be used any more"
