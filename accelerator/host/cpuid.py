"""The x86-64 level by the C library's own record of CPUID, for which no file is read.

glibc 2.33 and newer keep it, and give it out by `__x86_get_cpuid_feature_leaf` (<sys/platform/x86.h>; its manual,
"X86-specific Facilities"). A feature counts where it is *active*: the processor has it, and the system saves what it
needs. That holds under an emulator too, whose /proc/cpuinfo tells of the machine below.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os

_FUNCTION = "__x86_get_cpuid_feature_leaf"
_LEAF = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint)
_LEAF_1, _LEAF_7, _LEAF_80000001 = range(3)
"""Their numbers in <bits/platform/x86.h>."""
_EBX, _ECX = 1, 2
_ACTIVE = 16
"""Bytes from a leaf's start to its four registers' active bits; what the processor itself answers comes before."""
_LEVELS = (
    # SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF
    (
        "x86-64-v2",
        ((_LEAF_1, _ECX, 1 << 0 | 1 << 9 | 1 << 13 | 1 << 19 | 1 << 20 | 1 << 23), (_LEAF_80000001, _ECX, 1 << 0)),
    ),
    # FMA, MOVBE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT. AVX is active only where OSXSAVE is on.
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
    """Give the highest x86-64 level that is active in this process; None where the C library keeps no such record."""
    try:
        # Not ctypes.CDLL(None): making its class takes longer than all that is asked of it here.
        process = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]
        leaf = _LEAF(_ctypes.dlsym(process, _FUNCTION))
    except OSError:
        return None
    reached = "x86-64"
    for name, needs in _LEVELS:
        for number, register, mask in needs:
            active = ctypes.c_uint32.from_address(leaf(number) + _ACTIVE + 4 * register).value
            if active & mask != mask:
                return reached
        reached = name
    return reached
