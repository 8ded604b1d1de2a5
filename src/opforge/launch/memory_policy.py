"""The kernel's memory policy of this process, by the system call itself: libnuma and numactl are not needed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection

MODES = {"preferred": 1, "bind": 2}
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
"""By machine: the numbers of set_mempolicy and get_mempolicy."""
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


def set_policy(policy: str, nodes: Collection[int]) -> str:
    """Set the policy (`bind` or `preferred`) for memory touched from now on, children's too.

    Returns "" where it is set, else why it could not be: containers often forbid the call.
    """
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        return f"the number of the set_mempolicy system call on {os.uname().machine} is not known"
    size = max(nodes) // _WORD + 1
    mask = (ctypes.c_ulong * size)()
    for node in nodes:
        mask[node // _WORD] |= 1 << node % _WORD
    kernel = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    if kernel.syscall(calls[0], MODES[policy], mask, ctypes.c_ulong(size * _WORD + 1)):
        return f"set_mempolicy: {os.strerror(ctypes.get_errno())}"
    return ""


def policy() -> tuple[str, tuple[int, ...]]:
    """The policy in force and its nodes; ("default", ()) where none was set. Raises OSError."""
    words = 16
    mask, mode = (ctypes.c_ulong * words)(), ctypes.c_int()
    kernel = ctypes.CDLL(None, use_errno=True)
    number = _CALLS[os.uname().machine][1]
    if kernel.syscall(number, ctypes.byref(mode), mask, ctypes.c_ulong(words * _WORD), None, ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    names = {number: name for name, number in MODES.items()}
    nodes = tuple(bit for bit in range(words * _WORD) if mask[bit // _WORD] >> bit % _WORD & 1)
    return names.get(mode.value, "default"), nodes
