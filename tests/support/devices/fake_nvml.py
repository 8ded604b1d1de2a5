"""NVML over made-up GPUs, put in the place of the package that asks the real ones."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace

from support.devices.vendor_modules import TOTAL

from opforge.accelerator.vendors import nvml


class Nvml(types.ModuleType):
    """pynvml over made-up GPUs: (uuid, model, capability, parts), a part being a MIG device's uuid or None.

    Its names are those of the real package: a test holds that where it is installed.
    """

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus):
        super().__init__("pynvml")
        self.gpus = [SimpleNamespace(uuid=uuid, model=model, cc=cc, parts=parts) for uuid, model, cc, parts in gpus]
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
        return SimpleNamespace(free=sum(handle.uuid.encode()), total=TOTAL)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return handle.cc


TWO = (("GPU-aaaa-1", "H200", (9, 0), None), ("GPU-aabb-2", "H200", (9, 0), None))
DIVIDED = (
    ("GPU-aaaa-1", "H200", (9, 0), [None, "MIG-dddd-7", "MIG-eeee-8"]),
    ("GPU-aabb-2", "H200", (9, 0), []),
)


def serve(monkeypatch, *gpus):
    module = Nvml(*gpus)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(nvml, "_started", None)
    return module


def free(uuid: str) -> int:
    return sum(uuid.encode())
