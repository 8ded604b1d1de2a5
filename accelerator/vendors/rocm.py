"""What AMD's kernel driver tells without the HIP runtime, after whose start a fork could not use the device."""

from __future__ import annotations

import glob
import os

from opforge.accelerator.host.files import read_number

_DRIVER = "dev/kfd"
_NODES = "sys/class/kfd/kfd/topology/nodes/*/gpu_id"


def obstacle(root: str = "/") -> str:
    """Why there is no device for HIP, or nothing where there is one."""
    driver = os.path.join(root, _DRIVER)
    if not os.path.exists(driver):
        # WSL's driver makes one file for all makers' devices.
        return "" if os.path.exists(os.path.join(root, "dev/dxg")) else f"no driver: there is no /{_DRIVER}"
    if not os.access(driver, os.R_OK | os.W_OK):
        return f"this user may not open /{_DRIVER}: it must be in the group that owns it (render)"
    # The processors are nodes of the same tree, with the number 0.
    if not any(read_number("/", path) for path in glob.glob(os.path.join(root, _NODES))):
        return f"no device: no /{_NODES} names a GPU"
    return ""
