"""The NUMA node of each device, from /sys/bus/pci: no driver is used, and torch is not imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from opforge.accelerator.host.files import read_number, read_text

_PCI = "sys/bus/pci/devices"


class DeviceKind(NamedTuple):
    """How the devices of an accelerator are recognised on the PCI bus."""

    vendors: tuple[str, ...]
    classes: tuple[str, ...]
    """Prefixes of the class code: 0x0300 VGA, 0x0302 and 0x0380 other graphics, 0x1200 a processing accelerator."""
    visible: tuple[str, ...]
    """The environment variables that choose among the devices."""


_GRAPHICS = ("0x0300", "0x0302", "0x0380")
DEVICE_KINDS = {
    "cuda": DeviceKind(
        ("0x10de", "0x1002"),
        (*_GRAPHICS, "0x1200"),
        ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    ),
    "xpu": DeviceKind(("0x8086",), ("0x0302", "0x0380"), ("ZE_AFFINITY_MASK",)),
    "npu": DeviceKind(("0x19e5",), ("0x1200",), ("ASCEND_RT_VISIBLE_DEVICES",)),
    "hpu": DeviceKind(("0x1da3",), ("0x1200",), ("HABANA_VISIBLE_DEVICES",)),
    "mlu": DeviceKind(("0xcabc",), ("0x1200",), ("MLU_VISIBLE_DEVICES",)),
}
"""By accelerator name. The ranks of an accelerator that is not listed are spread as on a CPU."""


def device_nodes(accelerator: str, slots: int, environ: Mapping[str, str], root: str = "/") -> tuple[int, ...] | None:
    """Returns the NUMA node of the device of each slot. None if any of them is not known.

    Slot i is the i-th device in the order of the bus, or the i-th number in the visible-devices variable.
    """
    kind = DEVICE_KINDS.get(accelerator)
    if kind is None:
        return None
    nodes = _nodes(root, kind)
    visible = next((environ[name] for name in kind.visible if environ.get(name)), "")
    devices = [part.strip() for part in visible.split(",")] if visible else [str(slot) for slot in range(len(nodes))]
    if len(devices) < slots or not all(device.isdecimal() and int(device) < len(nodes) for device in devices[:slots]):
        return None  # UUIDs, MIG devices, or fewer devices than slots
    of_slots = tuple(nodes[int(device)] for device in devices[:slots])
    return None if any(node < 0 for node in of_slots) else of_slots


def _nodes(root: str, kind: DeviceKind) -> list[int]:
    """Returns the NUMA node of each device, in the order of their PCI addresses; -1 if the firmware names none."""
    try:
        addresses = sorted(os.listdir(os.path.join(root, _PCI)))
    except OSError:
        return []
    by_vendor: dict[str, list[int]] = {}
    for address in addresses:
        vendor = (read_text(root, f"{_PCI}/{address}/vendor") or "").strip()
        class_code = (read_text(root, f"{_PCI}/{address}/class") or "").strip()
        if vendor in kind.vendors and class_code.startswith(kind.classes):
            node = read_number(root, f"{_PCI}/{address}/numa_node")
            by_vendor.setdefault(vendor, []).append(-1 if node is None else node)
    return next((by_vendor[vendor] for vendor in kind.vendors if vendor in by_vendor), [])
