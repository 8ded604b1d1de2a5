"""Makes this machine look like one with a vendor's device: its module in torch, its package, its driver's files."""

from __future__ import annotations

import importlib
import os
import sys
import types
from types import SimpleNamespace
from typing import Any

import torch
from support.devices.fake_devices import MEMBERS, FakeDevice
from support.devices.files import write_files
from support.devices.recorded_modules import NAMES, RecordedModule

from opforge.accelerator import registry
from opforge.accelerator.vendors import nvidia

VENDORS = tuple(MEMBERS)
"""The accelerators that can be installed here: all of opforge's own except `cpu` and `null`."""
FILES = {
    "cuda": {"dev/nvidia0": "", "dev/nvidia1": ""},
    "xpu": {"dev/dri/renderD128": "", "sys/class/drm/renderD128/device/vendor": "0x8086\n"},
    "npu": {"dev/davinci0": ""},
    "hpu": {"dev/accel/accel_controlD3": ""},
    "mlu": {"dev/cambricon_dev0": ""},
    "sdaa": {"dev/tcaicard20": ""},
    "supa": {"dev/biren/card_0": ""},
    "klxpu": {"dev/xpu0": "", "dev/xpuctrl": ""},
}
"""The files that each driver makes, with their contents."""


def accelerator_class(name: str) -> Any:
    """Returns the class of one of opforge's own accelerators."""
    module, _, attribute = registry.BUILT_IN[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def install(name: str, monkeypatch: Any, root: Any) -> tuple[Any, FakeDevice]:
    """Makes this machine look like one with the vendor's device. Returns the accelerator and its fake device."""
    kind = accelerator_class(name)
    device = FakeDevice(name)
    device.module = module = RecordedModule(name, MEMBERS[name](device))
    write_files(root, FILES.get(name, {}))
    monkeypatch.setattr(kind, "root", str(root))
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    get_device_module = torch.get_device_module
    monkeypatch.setattr(
        torch, "get_device_module", lambda device: module if device == kind.torch_device else get_device_module(device)
    )
    if name in NAMES:
        _put_into_sys_modules(kind.package, module, monkeypatch)
    if name == "cuda":
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(nvidia, "driver_version", lambda: (13, 0))
    if name == "xpu":
        monkeypatch.setattr(torch.version, "xpu", "20260000")
    if name == "hpu":
        experimental = types.ModuleType("experimental")
        experimental._is_fp16_supported = lambda: True  # type: ignore[attr-defined]
        _put_into_sys_modules("habana_frameworks.torch.utils.experimental", experimental, monkeypatch)
    if name == "mps":
        monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Darwin", "mac", "25.0.0", "", "arm64")))
        for function in ("is_built", "is_available", "is_macos_or_newer"):
            monkeypatch.setattr(torch.backends.mps, function, lambda *version: True)
        monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M4", raising=False)
    _fake_tensors(kind.torch_device, monkeypatch)
    return kind(), device


def _put_into_sys_modules(dotted_name: str, module: Any, monkeypatch: Any) -> None:
    parts = dotted_name.split(".")
    for end in range(1, len(parts)):
        parent = ".".join(parts[:end])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, dotted_name, module)


def _fake_tensors(name: str, monkeypatch: Any) -> None:
    """Makes tensors for the device `meta` tensors that report the device, and lets host memory be pinned."""

    class OnDevice(torch.Tensor):
        device = property(lambda self: SimpleNamespace(type=name))  # type: ignore[assignment]

    torch_tensor, torch_new_empty = torch.tensor, torch.Tensor.new_empty
    pinned: list[int] = []

    def tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
        if device != name:
            return torch_tensor(data, dtype=dtype, device=device)
        return torch_tensor(data, dtype=dtype, device="meta").as_subclass(OnDevice)

    def pin_memory(self: Any, device: Any = None) -> Any:
        if name == "mps":
            raise RuntimeError("as DeepSpeed's accelerator says of torch on macOS")
        assert device is None or str(device).partition(":")[0] == name
        copy = self.clone()
        pinned.append(copy.data_ptr())
        return copy

    def new_empty(self: Any, size: Any, pin_memory: bool = False, **options: Any) -> Any:
        empty = torch_new_empty(self, size, **options)
        return empty.pin_memory() if pin_memory else empty

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self, device=None: self.data_ptr() in pinned)
