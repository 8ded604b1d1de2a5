"""NVIDIA's devices as the driver reports them without being initialised: its version, and the devices to be used."""

from __future__ import annotations

import ctypes
import glob
import os

from opforge.accelerator.host.files import read_text

_LIBRARY = "libcuda.so.1"
_DEVICES = "dev/nvidia[0-9]*"
_OTHER_DRIVERS = ("dev/dxg", "dev/nvmap")
"""Files of the drivers of WSL and of Tegra boards, which make no file for each device."""


def device_problem(toolkit: str, root: str = "/") -> str | None:
    """Returns why a torch built with this CUDA toolkit, such as `13.0`, has no device here. None if it has one.

    A process that has only counted devices through CUDA's runtime can no longer use CUDA in its forks. So only the
    version is read from the driver's library, and the files that the driver made are counted.
    """
    driver = driver_version()
    if driver is None:
        return f"no driver: {_LIBRARY} cannot be loaded"
    if driver[0] < int(toolkit.partition(".")[0]):
        return (
            f"the driver is too old: it supports CUDA up to {driver[0]}.{driver[1]}, and this torch is built with"
            f" {toolkit}; update the driver, or install a torch for CUDA {driver[0]}"
        )
    files = [path for path in glob.glob(os.path.join(root, _DEVICES)) if os.access(path, os.R_OK | os.W_OK)]
    if files:
        return _visibility_problem(len(files), root)
    if any(os.path.exists(os.path.join(root, path)) for path in _OTHER_DRIVERS):
        return None
    return f"no device: there is no /{_DEVICES} that this process may open"


def driver_version() -> tuple[int, int] | None:
    """Returns the newest CUDA version that the driver supports, such as (13, 0). None if there is no driver."""
    version = ctypes.c_int(0)
    try:
        # The only function that needs no cuInit, after which a fork could not use CUDA.
        error_code = ctypes.CDLL(_LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if error_code else (version.value // 1000, version.value % 1000 // 10)


def visible_devices() -> tuple[str, ...] | None:
    """Returns the entries of CUDA_VISIBLE_DEVICES that CUDA respects. None if the variable is unset.

    Entries are numbers, or ids that begin with `GPU-` or `MIG-`, all of one kind: the first one that is not ends the
    list. If an entry is repeated, there are none.
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


def _visibility_problem(count: int, root: str) -> str | None:
    entries = visible_devices()
    if entries is None:
        return None
    first = entries[0] if entries else ""
    if first.isdecimal():
        is_device = int(first) < count
    elif first.startswith("GPU-"):
        uuids = _uuids(root)
        is_device = not uuids or any(uuid.startswith(first) for uuid in uuids)
    else:
        is_device = bool(first)  # the driver lists MIG devices only in NVML
    if is_device:
        return None
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"CUDA_VISIBLE_DEVICES={value!r} leaves none of {count} device{'' if count == 1 else 's'}"


def _uuids(root: str) -> list[str]:
    uuids = []
    for path in glob.glob(os.path.join(root, "proc/driver/nvidia/gpus/*/information")):
        for line in (read_text("/", path) or "").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "GPU UUID":
                uuids.append(value.strip())
    return uuids
