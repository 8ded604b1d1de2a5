"""What the tests of adapters need: a CUDA driver that does nothing."""

from __future__ import annotations

import os
import subprocess
from typing import Any


def driver(folder: Any) -> Any:
    """Builds the driver in a folder; returns the folder."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libcuda.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", f"{folder}/libcuda.so.1", source], check=True)
    return folder


def driver_variables(folder: Any) -> dict[str, str]:
    """Returns the variables by which Triton and the loader find it."""
    return {"TRITON_LIBCUDA_PATH": str(folder), "LD_LIBRARY_PATH": str(folder)}
