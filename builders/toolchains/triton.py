"""Triton: kernels in Python, for NVIDIA's and AMD's GPUs, compiled ahead of time; the host's compiler links the library."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from opforge.accelerator import archs
from opforge.builders.plan import BuildPlan, Step
from opforge.cache.disk import Disk
from opforge.cache.inputs import Located
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.errors import ToolchainNotFoundError

from . import identity
from .host import HostToolchain
from .protocol import Toolchain

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "triton_worker.py")
ADVICE = "Install it (pip install 'opforge[triton]'), or use a library that was built elsewhere: build-ops --out."
BATCH = 16
"""Images that one process compiles: importing Triton takes as long as a few of them."""
LAUNCHER = tuple(f"launcher/{name}.cpp" for name in ("launch", "open", "cuda_driver", "hip_driver"))
"""The launcher's units, below opforge's own kernel root."""
DEVICES = ("cuda", "hip")
OLDEST = (7, 5)
EXACT = 90
"""From sm_90 on Triton compiles for one architecture alone, in PTX too; PTX that later devices take is older than that."""
PORTABLE = "compute_80"


def exact(arch: Sequence[str]) -> tuple[str, ...]:
    """The architectures of a CUDA target as Triton compiles for them: sm_90 is sm_90a, and PTX that of an older one."""
    found = []
    for one in arch:
        if one.startswith("sm_"):
            major, minor, _letter = archs.numbers(one)
            one = f"sm_{major}{minor}a" if major * 10 + minor >= EXACT else f"sm_{major}{minor}"
        found.append(one)
    plain = [one for one in found if one.startswith("sm_") and not one.endswith("a")]
    newest = archs.virtual(archs.forward(plain)) if plain else PORTABLE
    return archs.canonical("cuda", [newest if one == "ptx" else one for one in found])


class TritonToolchain(Toolchain):
    """The Triton that this Python would import, with the host's compiler. Raises ToolchainNotFoundError without one."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self._folder = _find()
        self._layout, self._disk = layout, disk
        self.host = HostToolchain(layout, disk)
        self.argv = (sys.executable, "-I", WORKER)
        self._known: dict[str, Any] | None = None

    @property
    def _code(package: str) -> list[str]:
    """The files of a Triton that was not installed from a wheel which decide what it compiles."""
    return [
        os.path.join(place, name)
        for place, _folders, names in os.walk(package)
        for name in names
        if name.endswith((".py", ".so", ".bc")) or os.path.basename(place) == "bin"
    ]
