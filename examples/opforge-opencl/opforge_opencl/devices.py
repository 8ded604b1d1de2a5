"""Which OpenCL devices there are, asked of libOpenCL itself."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any, NamedTuple

LIBRARY = "libOpenCL.so.1"
VENDORS = "/etc/OpenCL/vendors"
LISTS = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH")
"""The variables that name drivers, or the folder that lists them, in the folder's stead."""
ALL = 0xFFFFFFFF
NAME, EXTENSIONS, MEMORY, VERSION = 0x102B, 0x1030, 0x101F, 0x102F


class Device(NamedTuple):
    """One device, in the order of the platforms and of their devices, in which csrc counts too."""

    name: str
    version: str
    memory: int
    """Bytes of its global memory."""
    extensions: frozenset[str]


def missing() -> str:
    """Why there can be no device; empty where a driver is listed.

    No driver is loaded to find out: some start threads, which a later fork would lose.
    """
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as problem:
        return f"{problem} (Debian, Ubuntu: apt install ocl-icd-libopencl1)"
    if any(os.environ.get(name) for name in LISTS):
        return ""
    try:
        listed = [name for name in os.listdir(VENDORS) if name.endswith(".icd")]
    except OSError:
        listed = []
    return "" if listed else f"{VENDORS} lists no OpenCL driver (for the CPU: apt install pocl-opencl-icd)"


@cache
def devices() -> tuple[Device, ...]:
    """Every device of every driver. Loads the drivers."""
    library = ctypes.CDLL(LIBRARY)
    found = []
    for platform in _handles(library.clGetPlatformIDs):
        for device in _handles(library.clGetDeviceIDs, ctypes.c_void_p(platform), ctypes.c_ulong(ALL)):
            told = {one: _told(library, device, one) for one in (NAME, VERSION, MEMORY, EXTENSIONS)}
            found.append(
                Device(
                    _text(told[NAME]),
                    _text(told[VERSION]),
                    int.from_bytes(told[MEMORY], "little"),
                    frozenset(_text(told[EXTENSIONS]).split()),
                )
            )
    return tuple(found)


def _handles(ask: Any, *about: Any) -> list[int]:
    """What a function of the form f(..., room, handles, count) lists; nothing where it fails, as with no platform."""
    count = ctypes.c_uint()
    if ask(*about, 0, None, ctypes.byref(count)) or not count.value:
        return []
    handles = (ctypes.c_void_p * count.value)()
    return [one for one in handles if one] if ask(*about, count, handles, None) == 0 else []


def _told(library: Any, device: int, what: int) -> bytes:
    size = ctypes.c_size_t()
    library.clGetDeviceInfo(ctypes.c_void_p(device), what, ctypes.c_size_t(0), None, ctypes.byref(size))
    value = ctypes.create_string_buffer(size.value)
    code = library.clGetDeviceInfo(ctypes.c_void_p(device), what, size, value, None)
    if code:
        raise OSError(f"clGetDeviceInfo({what:#x}) failed with code {code}")
    return value.raw


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace").strip()
