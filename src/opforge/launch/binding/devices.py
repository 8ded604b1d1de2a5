"""Near which NUMA node each device sits, from /sys/bus/pci: no driver is asked, and torch is not imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from opforge.accelerator.host.files import read_number, read_text

_PCI = "sys/bus/pci/devices"


class Kind(NamedTuple):
    """How an accelerator's devices are told on the PCI bus."""

    vendors: tuple[str, ...]
    classes: tuple[str, ...]
    """Beginnings of the class code: 0x0300 VGA, 0x0302 and 0x0380 other graphics, 0x1200 a processing accelerator."""
    visible: tuple[str, ...]
    """Variables that choose among them."""


_GRAPHICS = ("0x0300", "0x0302", "0x0380")
KINDS = {
    "cuda": Kind(
        ("0x10de", "0x1002"),
        (*_GRAPHICS, "0x1200"),
        ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    ),
    "xpu": Kind(("0x8086",), ("0x0302", "0x0380"), ("ZE_AFFINITY_MASK",)),
    "npu": Kind(("0x19e5",), ("0x1200",), ("ASCEND_RT_VISIBLE_DEVICES",)),
    "hpu": Kind(("0x1da3",), ("0x1200",), ("HABANA_VISIBLE_DEVICES",)),
    "mlu": Kind(("0xcabc",), ("0x1200",), ("MLU_VISIBLE_DEVICES",)),
}
"""By the accelerator's name. One that is not here gives no hint, and its ranks are spread as a CPU's are."""


def device_nodes(accelerator: str, slots: int, environ: Mapping[str, str], root: str = "/") -> tuple[int, ...] | None:
    """The NUMA node of the device of each slot; None where that of any is not known.

    Slot i is the i-th device in the order of the bus, or the i-th that the visible-devices variable lists by number.
    """
    kind = KINDS.get(accelerator)
    if kind is None:
        return None
    nodes = _nodes(root, kind)
    listed = next((environ[name] for name in kind.visible if environ.get(name)), "")
    chosen = [part.strip() for part in listed.split(",")] if listed else [str(slot) for slot in range(len(nodes))]
    if len(chosen) < slots or not all(one.isdecimal() and int(one) < len(nodes) for one in chosen[:slots]):
        return None  # UUIDs, MIG devices, or fewer devices than slots
    found = tuple(nodes[int(one)] for one in chosen[:slots])
    return None if any(node < 0 for node in found) else found


def _nodes(root: str, kind: Kind) -> list[int]:
    """The NUMA node of each device, in the order of their PCI addresses; -1 where the firmware does not tell."""
    try:
        addresses = sorted(os.listdir(os.path.join(root, _PCI)))
    except OSError:
        return []
    found: dict[str, list[int]] = {}
    for address in addresses:
        vendor = (read_text(root, f"{_PCI}/{address}/vendor") or "").strip()
        group = (read_text(root, f"{_PCI}/{address}/class") or "").strip()
        if vendor in kind.vendors and group.startswith(kind.classes):
            node = read_number(root, f"{_PCI}/{address}/numa_node")
            found.setdefault(vendor, []).append(-1 if node is None else node)
    return next((found[vendor] for vendor in kind.vendors if vendor in found), [])
