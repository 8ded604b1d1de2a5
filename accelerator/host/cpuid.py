"""The x86-64 level from the C library's record of CPUID, which needs no file to be read.

glibc 2.33 and newer return it from `__x86_get_cpuid_feature_leaf` (<sys/platform/x86.h>; in the manual: "X86-specific
Facilities"). A feature counts if it is *active*: the processor has it, and the system saves its registers. This is also
right under an emulator, whose /proc/cpuinfo shows the features of the host's processor.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
from functools import cache

LEAF_FUNCTION = "__x86_get_cpuid_feature_leaf"
_LEAF = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint)
_LEAF_1, _LEAF_7, _LEAF_80000001 = range(3)
"""The leaves' numbers in <bits/platform/x86.h>."""
_EBX, _ECX = 1, 2
_ACTIVE = 16
"""Bytes from a leaf's start to its four registers' active bits; the processor's own bits come before them."""
_LEVELS = (
    # SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF
    (
        "x86-64-v2",
        ((_LEAF_1, _ECX, 1 << 0 | 1 << 9 | 1 << 13 | 1 << 19 | 1 << 20 | 1 << 23), (_LEAF_80000001, _ECX, 1 << 0)),
    ),
    # FMA, MOVBE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT. AVX is active only if OSXSAVE is on.
    (
        "x86-64-v3",
        (
            (_LEAF_1, _ECX, 1 << 12 | 1 << 22 | 1 << 28 | 1 << 29),
            (_LEAF_7, _EBX, 1 << 3 | 1 << 5 | 1 << 8),
            (_LEAF_80000001, _ECX, 1 << 5),
        ),
    ),
    # AVX512F, DQ, CD, BW, VL
    ("x86-64-v4", ((_LEAF_7, _EBX, 1 << 16 | 1 << 17 | 1 << 28 | 1 << 30 | 1 << 31),)),
)


def level() -> str | None:
    """Returns the highest x86-64 level that is active in this process. None if the C library has no such record."""
    try:
        # Not ctypes.CDLL(None): creating its class takes longer than the rest of this function.
        process = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]
        leaf = _LEAF(_ctypes.dlsym(process, LEAF_FUNCTION))
    except OSError:
        return None
    reached = "x86-64"
    for name, requirements in _LEVELS:
        for number, register, mask in requirements:
            active = ctypes.c_uint32.from_address(leaf(number) + _ACTIVE + 4 * register).value
            if active & mask != mask:
                return reached
        reached = name
    return reached


def cpu_level(root: str = "/") -> str:
    """Returns the level that code may be built for here, such as `x86-64-v3` or `aarch64`; empty if none is known."""
    return _cpu_level(root)


@cache  # it tells a call with the default from one that states it
def _cpu_level(root: str) -> str:
    reported = level() if root == "/" else None
    if reported:
        return reported
    from .cpuinfo import read_cpuinfo  # not on the path of a hit

    return read_cpuinfo(root).level
