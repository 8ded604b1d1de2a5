"""Sets the kernel's memory policy of this process by the system call itself, without libnuma or numactl."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection

MODES = {"preferred": 1, "bind": 2}
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""The number of the system call, by machine."""
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


def set_policy(policy: str, nodes: Collection[int]) -> str | None:
    """Sets the policy (`bind` or `preferred`) for memory that is touched from now on, by child processes too.

    Returns None if it is set, otherwise the reason why not: containers often forbid the call.
    """
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return f"the number of the set_mempolicy system call on {os.uname().machine} is not known"
    size = max(nodes) // _WORD + 1
    mask = (ctypes.c_ulong * size)()
    for node in nodes:
        mask[node // _WORD] |= 1 << node % _WORD
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than the size that it is passed.
    if libc.syscall(number, MODES[policy], mask, ctypes.c_ulong(size * _WORD + 1)):
        return f"set_mempolicy: {os.strerror(ctypes.get_errno())}"
    return None
