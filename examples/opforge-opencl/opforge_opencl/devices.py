"""The OpenCL devices of this machine, by calls of libOpenCL."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any, NamedTuple

LIBRARY = "libOpenCL.so.1"
VENDORS = "/etc/OpenCL/vendors"
LISTS = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH")
"""The variables that name drivers, or another folder that lists them."""
ALL = 0xFFFFFFFF
NAME, EXTENSIONS, MEMORY, VERSION = 0x102B, 0x1030, 0x101F, 0x102F


class Device(NamedTuple):
    """One device. Its number counts platforms and their devices in order, as csrc does."""

    name: str
    version: str
    memory: int
    """Bytes of its global memory."""
    extensions: frozenset[str]


def driver_problem() -> str | None:
    """Returns why there can be no device. None if a driver is listed.

    No driver is loaded: some start threads, which a fork of this process would lose.
    """
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        return f"{error} (Debian, Ubuntu: apt install ocl-icd-libopencl1)"
    if any(os.environ.get(name) for name in LISTS):
        return None
    try:
        drivers = [name for name in os.listdir(VENDORS) if name.endswith(".icd")]
    except OSError:
        drivers = []
    return None if drivers else f"{VENDORS} lists no OpenCL driver (for the CPU: apt install pocl-opencl-icd)"


@cache
def devices() -> tuple[Device, ...]:
    """Returns every device of every driver. Loads the drivers."""
    library = ctypes.CDLL(LIBRARY)
    return tuple(
        Device(
            _text(_property(library, device, NAME)),
            _text(_property(library, device, VERSION)),
            int.from_bytes(_property(library, device, MEMORY), "little"),
            frozenset(_text(_property(library, device, EXTENSIONS)).split()),
        )
        for platform in _handles(library.clGetPlatformIDs)
        for device in _handles(library.clGetDeviceIDs, ctypes.c_void_p(platform), ctypes.c_ulong(ALL))
    )


def _handles(list_handles: Any, *arguments: Any) -> list[int]:
    """Returns what a function of the form f(..., capacity, handles, count) lists.

    Empty if the function fails: clGetDeviceIDs fails for a platform without devices.
    """
    count = ctypes.c_uint()
    if list_handles(*arguments, 0, None, ctypes.byref(count)) or not count.value:
        return []
    handles = (ctypes.c_void_p * count.value)()
    status = list_handles(*arguments, count, handles, None)
    return [handle for handle in handles if handle] if status == 0 else []


def _property(library: Any, device: int, number: int) -> bytes:
    size = ctypes.c_size_t()
    library.clGetDeviceInfo(ctypes.c_void_p(device), number, ctypes.c_size_t(0), None, ctypes.byref(size))
    value = ctypes.create_string_buffer(size.value)
    code = library.clGetDeviceInfo(ctypes.c_void_p(device), number, size, value, None)
    if code:
        raise OSError(f"clGetDeviceInfo({number:#x}) failed with code {code}")
    return value.raw


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace").strip()
