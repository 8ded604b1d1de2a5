"""NVIDIA's management library: memory as all processes together left it, and architectures, without opening a device.

It comes from the package nvidia-ml-py (the extra `opforge[cuda]`). It knows all devices of the machine, so that those
this process may use must be found among them.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from .nvidia import visible_devices

if TYPE_CHECKING:
    from typing import Any

_started: tuple[int, Any] | None = None
"""The process in which the library was started, and the module: a fork starts it again."""


class NvmlUnavailableError(Exception):
    """NVML cannot answer; the text says why. The caller asks torch instead."""


def memory(index: int, uuid: str = "") -> tuple[int, int]:
    """Give (free, total) bytes of the device that CUDA numbers so; `uuid` is exact where CUDA has told it."""
    nvml = _start()
    try:
        found = nvml.nvmlDeviceGetMemoryInfo(_device(nvml, index, uuid))
    except nvml.NVMLError as problem:
        raise NvmlUnavailableError(f"NVML: {problem}") from None
    return int(found.free), int(found.total)


def compute_capabilities() -> list[tuple[int, int]]:
    """Give the compute capability of each device that this process may use."""
    nvml = _start()
    try:
        found = [nvml.nvmlDeviceGetCudaComputeCapability(device) for device in _visible(nvml)]
    except nvml.NVMLError as problem:
        raise NvmlUnavailableError(f"NVML: {problem}") from None
    return [(int(major), int(minor)) for major, minor in found]


def _start() -> Any:
    global _started
    if _started is None or _started[0] != os.getpid():
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            raise NvmlUnavailableError(
                "the package nvidia-ml-py is not installed (pip install 'opforge[cuda]')"
            ) from None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as problem:
            raise NvmlUnavailableError(f"NVML does not start: {problem}") from None
        _started = os.getpid(), nvml
    return _started[1]


def _device(nvml: Any, index: int, uuid: str) -> Any:
    known = _by_uuid(nvml) if uuid else {}
    if uuid in known:
        return known[uuid]
    devices = _visible(nvml)
    if index >= len(devices):
        raise NvmlUnavailableError(f"NVML sees {len(devices)} devices that this process may use, and no cuda:{index}")
    return devices[index]


def _visible(nvml: Any) -> list[Any]:
    """The devices in CUDA's order."""
    entries = visible_devices()
    if entries and not entries[0].isdecimal():
        known = _by_uuid(nvml)
        found = []
        for entry in entries:
            fitting = [device for uuid, device in known.items() if uuid.startswith(entry)]
            if len(fitting) != 1:  # CUDA ends its list at the first id that names no device, or several
                break
            found += fitting
        return found
    devices = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    models = {nvml.nvmlDeviceGetName(device) for device in devices}
    if len(models) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise NvmlUnavailableError(
            "CUDA numbers devices of several models by speed, NVML by place: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    numbers = range(len(devices)) if entries is None else [int(entry) for entry in entries]
    chosen = []
    for number in numbers:
        if number >= len(devices):
            break
        chosen.append(devices[number])
    return [(_parts(nvml, device) or [device])[0] for device in chosen]


def _by_uuid(nvml: Any) -> dict[str, Any]:
    devices = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    devices += [part for device in devices for part in _parts(nvml, device)]
    return {str(nvml.nvmlDeviceGetUUID(device)): device for device in devices}


def _parts(nvml: Any, device: Any) -> list[Any]:
    """The MIG devices that a GPU is divided into; where there are some, CUDA uses them and not the whole."""
    try:
        if not nvml.nvmlDeviceGetMigMode(device)[0]:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(device)
    except nvml.NVMLError:  # a model that cannot be divided
        return []
    found = []
    for number in range(count):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, number))
        except nvml.NVMLError:  # this place holds none
            continue
    return found
