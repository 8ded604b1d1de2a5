"""What NVIDIA's driver tells without being opened: its version, its devices, and which of them this process may use."""

from __future__ import annotations

import ctypes
import glob
import os

from opforge.accelerator.host.files import read_text

_LIBRARY = "libcuda.so.1"
_DEVICES = "dev/nvidia[0-9]*"
_OTHER_DRIVERS = ("dev/dxg", "dev/nvmap")
"""Files of the drivers of WSL and of Tegra boards, which make none for each device."""


def obstacle(toolkit: str, root: str = "/") -> str:
    """Why a torch built with this CUDA toolkit (`13.0`) has no device here, or nothing where it has one.

    A process that has asked CUDA's runtime even for the number of devices cannot use CUDA in its forks. So the
    driver's library is asked for its version only, and the files that the driver made are counted.
    """
    driver = driver_version()
    if driver is None:
        return f"no driver: {_LIBRARY} cannot be loaded"
    if driver[0] < int(toolkit.partition(".")[0]):
        return (
            f"the driver is too old: it speaks CUDA {driver[0]}.{driver[1]}, and this torch is built with {toolkit};"
            f" update the driver, or install a torch for CUDA {driver[0]}"
        )
    files = [path for path in glob.glob(os.path.join(root, _DEVICES)) if os.access(path, os.R_OK | os.W_OK)]
    if not files:
        others = any(os.path.exists(os.path.join(root, path)) for path in _OTHER_DRIVERS)
        return "" if others else f"no device: there is no /{_DEVICES} that this process may open"
    return _hidden(len(files), root)


def driver_version() -> tuple[int, int] | None:
    """Give the newest CUDA that the driver speaks, such as (13, 0); None where there is no driver."""
    version = ctypes.c_int(0)
    try:
        # This function alone needs no cuInit, after which a fork could not use CUDA.
        failed = ctypes.CDLL(_LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else (version.value // 1000, version.value % 1000 // 10)


def visible_devices() -> tuple[str, ...] | None:
    """Give the entries of CUDA_VISIBLE_DEVICES that CUDA heeds; None where the variable is unset.

    Numbers, or ids that begin with `GPU-` or `MIG-`, of one kind: the first entry that is none ends the list. A
    repeated one empties it.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    entries: list[str] = []
    for word in text.split(","):
        entry = _entry(word.strip())
        if not entry or (entries and _kind(entry) != _kind(entries[0])):
            break
        if entry in entries:
            return ()
        entries.append(entry)
    return tuple(entries)


def _entry(word: str) -> str:
    if word.startswith(("GPU-", "MIG-")):
        return word
    digits = word[: len(word) - len(word.lstrip("0123456789"))]  # CUDA reads `1gpu` as 1
    return str(int(digits)) if digits else ""


def _kind(entry: str) -> str:
    return "number" if entry.isdecimal() else entry[:4]


def _hidden(count: int, root: str) -> str:
    entries = visible_devices()
    if entries is None:
        return ""
    first = entries[0] if entries else ""
    if first.isdecimal():
        found = int(first) < count
    elif first.startswith("GPU-"):
        known = _uuids(root)
        found = not known or any(uuid.startswith(first) for uuid in known)
    else:
        found = bool(first)  # the driver lists MIG devices nowhere but in NVML
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if found else f"CUDA_VISIBLE_DEVICES={value!r} leaves none of {count} device{'' if count == 1 else 's'}"


def _uuids(root: str) -> list[str]:
    found = []
    for path in glob.glob(os.path.join(root, "proc/driver/nvidia/gpus/*/information")):
        for line in (read_text("/", path) or "").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "GPU UUID":
                found.append(value.strip())
    return found
