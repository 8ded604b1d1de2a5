"""NVIDIA's management library: memory in use by all processes, and architectures, without opening a device.

It comes from the package nvidia-ml-py (the extra `opforge[cuda]`). It lists all devices of the machine, so the devices
that this process may use must be found among them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .nvidia import visible_devices

if TYPE_CHECKING:
    from typing import Any

_started: tuple[int, Any, str] | None = None
"""The process that started the library, its module, and why it cannot be used. A fork must start it again."""
_devices: dict[str, Any] = {}
"""UUID -> the device, since that start: finding it lists all devices and their parts."""


class NvmlUnavailableError(Exception):
    """NVML cannot be used, with the reason. The caller uses torch instead."""


def memory_info(index: int, uuid: str = "") -> tuple[int, int]:
    """Returns (free, total) bytes of the device that CUDA numbers `index`, or that has `uuid` if that is not empty."""
    with _nvml() as nvml:
        info = nvml.nvmlDeviceGetMemoryInfo(_device(nvml, index, uuid))
        return int(info.free), int(info.total)


def compute_capabilities() -> list[tuple[int, int]]:
    """Returns (major, minor) of each device that this process may use."""
    with _nvml() as nvml:
        pairs = [nvml.nvmlDeviceGetCudaComputeCapability(device) for device in _visible(nvml)]
        return [(int(major), int(minor)) for major, minor in pairs]


def reset() -> None:
    """Forgets that the library was started, so that the next call starts it again. For tests."""
    global _started
    _started = None


@contextmanager
def _nvml() -> Iterator[Any]:
    nvml = _start()
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML: {error}") from None


def _start() -> Any:
    global _started
    if _started is None or _started[0] != os.getpid():
        _devices.clear()
        _started = os.getpid(), *_start_library()
    _, nvml, problem = _started
    if problem:
        raise NvmlUnavailableError(problem)
    return nvml


def _start_library() -> tuple[Any, str]:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None, "the package nvidia-ml-py is not installed (pip install 'opforge[cuda]')"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"NVML does not start: {error}"
    return nvml, ""


def _device(nvml: Any, index: int, uuid: str) -> Any:
    if uuid and uuid not in _devices:
        _devices.update(_by_uuid(nvml))
    if uuid in _devices:
        return _devices[uuid]
    devices = _visible(nvml)
    if index >= len(devices):
        raise NvmlUnavailableError(f"NVML sees {len(devices)} devices that this process may use, and no cuda:{index}")
    return devices[index]


def _visible(nvml: Any) -> list[Any]:
    """Returns the devices that this process may use, in CUDA's order."""
    visible: list[Any] = []
    entries = visible_devices()
    if entries and not entries[0].isdecimal():
        by_uuid = _by_uuid(nvml)
        for entry in entries:
            matches = [device for uuid, device in by_uuid.items() if uuid.startswith(entry)]
            if len(matches) != 1:  # CUDA ends its list at the first id that matches no device, or several
                break
            visible += matches
        return visible
    devices = _all_devices(nvml)
    models = {nvml.nvmlDeviceGetName(device) for device in devices}
    if len(models) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise NvmlUnavailableError(
            "CUDA numbers devices of different models by speed, NVML by bus position: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    numbers = range(len(devices)) if entries is None else [int(entry) for entry in entries]
    for number in numbers:
        if number >= len(devices):
            break
        visible.append((_mig_devices(nvml, devices[number]) or [devices[number]])[0])
    return visible


def _all_devices(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]


def _by_uuid(nvml: Any) -> dict[str, Any]:
    devices = _all_devices(nvml)
    devices += [part for device in devices for part in _mig_devices(nvml, device)]
    return {str(nvml.nvmlDeviceGetUUID(device)): device for device in devices}


def _mig_devices(nvml: Any, device: Any) -> list[Any]:
    """Returns the MIG devices that a GPU is divided into. If there are any, CUDA uses them and not the whole GPU."""
    try:
        if not nvml.nvmlDeviceGetMigMode(device)[0]:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(device)
    except nvml.NVMLError:  # the model does not support MIG
        return []
    parts = []
    for index in range(count):
        try:
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        except nvml.NVMLError:  # there is no MIG device of this index
            continue
    return parts
