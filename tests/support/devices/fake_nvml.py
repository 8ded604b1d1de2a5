"""NVML over fake GPUs, in place of the package that reads the real ones."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace

from support.devices.fake_devices import TOTAL

from opforge.accelerator.vendors import nvml


class FakeNvml(types.ModuleType):
    """The package pynvml over fake GPUs: (uuid, model, compute capability, MIG devices).

    The last is None if the model does not support MIG; otherwise a list of uuids, None for an unused index. A test
    compares the function names with those of the real package if that is installed.
    """

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus):
        super().__init__("pynvml")
        self.gpus = [
            SimpleNamespace(uuid=uuid, model=model, capability=capability, parts=parts)
            for uuid, model, capability, parts in gpus
        ]
        self.starts = 0

    def nvmlInit(self):
        self.starts += 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetName(self, handle):
        return handle.model

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid

    def nvmlDeviceGetMigMode(self, handle):
        if handle.parts is None:
            raise self.NVMLError("Not Supported")
        return [1 if handle.parts else 0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        if index >= len(device.parts) or device.parts[index] is None:
            raise self.NVMLError("Not Found")
        return SimpleNamespace(uuid=device.parts[index], parts=None)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(free=free_bytes(handle.uuid), total=TOTAL)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return handle.capability


TWO_GPUS = (("GPU-aaaa-1", "H200", (9, 0), None), ("GPU-aabb-2", "H200", (9, 0), None))
GPU_WITH_MIG = (
    ("GPU-aaaa-1", "H200", (9, 0), [None, "MIG-dddd-7", "MIG-eeee-8"]),
    ("GPU-aabb-2", "H200", (9, 0), []),
)


def install(monkeypatch, *gpus):
    """Puts a fake NVML with these GPUs in place of the package, and returns it."""
    module = FakeNvml(*gpus)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    nvml.reset()
    return module


def free_bytes(uuid: str) -> int:
    """Returns the free memory that the fake NVML reports for a device: a different number for each uuid."""
    return sum(uuid.encode())
