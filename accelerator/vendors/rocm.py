"""AMD's devices as its kernel driver reports them: after a start of the HIP runtime no fork could use a device."""

from __future__ import annotations

import glob
import os

from opforge.accelerator.host.files import read_number

_DRIVER = "dev/kfd"
_WSL_DRIVER = "dev/dxg"
_NODES = "sys/class/kfd/kfd/topology/nodes/*/gpu_id"
FP8_ARCHS = ("gfx94", "gfx95", "gfx120")
"""Beginnings of the architectures with matrix instructions for float8: CDNA 3 and 4, RDNA 4."""


def device_problem(root: str = "/") -> str | None:
    """Returns why HIP has no device on this machine. None if it has one."""
    driver = os.path.join(root, _DRIVER)
    if not os.path.exists(driver):
        # WSL's driver makes one file for all vendors' devices.
        return None if os.path.exists(os.path.join(root, _WSL_DRIVER)) else f"no driver: there is no /{_DRIVER}"
    if not os.access(driver, os.R_OK | os.W_OK):
        return f"this user may not open /{_DRIVER}: it must be in the group that owns it (render)"
    # Processors are nodes too, with the number 0.
    if not any(read_number("/", path) for path in glob.glob(os.path.join(root, _NODES))):
        return f"no device: no /{_NODES} names a GPU"
    return None
