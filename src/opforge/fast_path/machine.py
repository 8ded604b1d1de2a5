"""The properties of the machine that are part of a look-up's name. Nothing here opens a file.

The x86-64 level is the C library's record of CPUID. glibc 2.33 and newer return it from `__x86_get_cpuid_feature_leaf`
(<sys/platform/x86.h>; in the manual: "X86-specific Facilities"). A feature counts if it is *active*: the processor has
it, and the system saves its registers. This is also right under an emulator, whose /proc/cpuinfo shows the features of
the host's processor.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import sys
import time
from functools import cache

from opforge.foundation import environment, remembered_values

LOADER_ENV = ("LD_LIBRARY_PATH", "LD_PRELOAD")
"""The variables that decide which libraries of the system an op meets."""
_LINK_MAP, _NAME_OFFSET = 2, 8
"""The request RTLD_DI_LINKMAP of dlinfo, and where the link map that it returns has the library's path."""
LEAF_FUNCTION = "__x86_get_cpuid_feature_leaf"
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
        leaf = remembered_values.FUNCTION(_ctypes.dlsym(process, LEAF_FUNCTION))
    except OSError:
        return None
    reached = "x86-64"
    for name, requirements in _LEVELS:
        for number, register, mask in requirements:
            active = ctypes.c_uint32.from_address(leaf(number, 0, 0) + _ACTIVE + 4 * register).value
            if active & mask != mask:
                return reached
        reached = name
    return reached


@cache
def level_here() -> str:
    """Returns the level that code may be built for here, such as `x86-64-v3` or `aarch64`; empty if it takes a file."""
    processor = os.uname().machine
    return level() or ("" if processor == "x86_64" else processor)


def name_parts() -> list[object]:
    """Returns the machine's part in the name of a remembered look-up: the facts that are known without opening a file.

    The rest cannot change between two look-ups of one name without a stamp that changes (torch's version), or is judged
    at each load (devices and driver).
    """
    return [level_here(), libc(), python_tag(), *map(environment.variable, LOADER_ENV)]


def libc() -> str:
    """Returns the name and version of the C library, such as `glibc 2.36`; empty if it is not glibc."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ""


_libstdcxx = ""


def libstdcxx() -> str:
    """Returns the newest GLIBCXX version of this process's libstdc++, which its file name states; empty if unknown.

    Once it is loaded it stays the same.
    """
    global _libstdcxx
    _libstdcxx = _libstdcxx or _read_libstdcxx()
    return _libstdcxx


def _read_libstdcxx() -> str:
    """Returns the version that `libstdcxx` remembers, read anew.

    The dynamic linker is asked for the path: reading /proc/self/maps takes ten times as long in a process with torch.
    """
    try:
        library = _ctypes.dlopen("libstdc++.so.6", os.RTLD_NOLOAD | os.RTLD_NOW)
        dlinfo = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
            _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "dlinfo")  # type: ignore[arg-type]
        )
    except (OSError, AttributeError):  # AttributeError: a system without RTLD_NOLOAD
        return ""
    link_map = ctypes.c_void_p()
    try:
        if dlinfo(library, _LINK_MAP, ctypes.addressof(link_map)) or not link_map.value:
            return ""
        path = ctypes.c_char_p.from_address(link_map.value + _NAME_OFFSET).value or b""
    finally:
        _ctypes.dlclose(library)
    number = _number(os.fsdecode(path))
    return f"3.4.{number}" if number.isdecimal() else ""


def _number(path: str) -> str:
    """Returns the last number in the name of the file that libstdc++'s path leads to."""
    try:
        number = os.readlink(path).rpartition("libstdc++.so.6.0.")[2]
        if number.isdecimal():
            return number  # the usual link: following a whole path takes ten times as long
    except OSError:
        pass  # it is no link
    return os.path.realpath(path).rpartition("/libstdc++.so.6.0.")[2]


def python_tag() -> str:
    """Returns the tag of this interpreter's binary interface, such as cpython-311."""
    return sys.implementation.cache_tag + getattr(sys, "abiflags", "")


@cache
def python_include() -> str:
    """Returns the folder of this interpreter's headers. A folder of its path may be a link.

    The usual place on POSIX is tried first: importing sysconfig takes longer than a whole cache hit.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    usual = f"{sys.base_prefix}/include/{version}"
    if not os.path.exists(f"{usual}/Python.h"):
        import sysconfig

        usual = sysconfig.get_path("include")
    return usual


_found: dict[str, tuple[list[object], remembered_values.FlatStamps, str | None]] = {}
"""Results of `package_folder` for packages that are not imported, and the state that they depend on."""


def package_folder(name: str) -> str | None:
    """Returns the folder of an installed top-level package, or None if there is none. Does not import it.

    Each look-up asks for torch's. Where it is not imported, finding it takes as long as all else: the answer is kept
    while the folders of sys.path and the finders are the same.
    """
    imported: str | None = getattr(sys.modules.get(name), "__file__", None)
    if imported:
        return os.path.dirname(imported)
    finders = [*sys.path, *sys.meta_path]
    finders_before, stamps, folder = _found.get(name, ((), remembered_values.FlatStamps(), None))
    if finders_before == finders and remembered_values.stamps_of(stamps.paths) == stamps.numbers:
        return folder
    began, paths = time.time_ns(), [path or "." for path in sys.path]
    numbers = remembered_values.stamps_of(paths)
    folder, file = _searched(name)
    own = [file] if file else []
    stamps = remembered_values.FlatStamps([*paths, *own], [*numbers, *remembered_values.stamps_of(own)])
    if not stamps.is_racy(began):
        _found[name] = finders, stamps, folder
    return folder


def _searched(name: str) -> tuple[str | None, str | None]:
    """Returns the folder of a package and its file, which the import system finds."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None  # an import hook of this process refuses it
    file = spec.origin if spec else None
    return (os.path.dirname(file), file) if file else (None, None)
