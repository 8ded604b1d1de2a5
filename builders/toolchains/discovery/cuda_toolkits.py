"""Which of several CUDA toolkits serves the devices here: the driver decides, and torch's own release is preferred."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from opforge.accelerator import archs
from opforge.builders.declaration import machine
from opforge.builders.declaration.op_spec import OpSpec
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.errors import ToolchainError
from opforge.foundation.versions import version_of

from . import probe, programs

SPLIT = 13
"""The first CUDA release whose compiler is complete in PyPI's packages."""
PACKAGES = ("nvcc", "cccl", "runtime", "crt")


class Need(NamedTuple):
    """The requirements of a library for the devices here on a toolkit."""

    driver: tuple[int, int]
    """The newest CUDA release that the driver supports."""
    compiles_ptx: bool
    """Whether the driver has to compile the library's PTX: it does so only for releases up to its own."""

    def is_met_by(self, release: str) -> bool:
        """Returns whether the driver runs what this CUDA release compiles.

        Within a major release it runs what any minor one compiles.
        """
        number = version_of(release)
        return number <= self.driver or (number[0] == self.driver[0] and not self.compiles_ptx)

    def problem(self, release: str) -> str | None:
        """Returns why code of this release would not run here, with the packages of one that would; None if it runs."""
        if self.is_met_by(release):
            return None
        major, minor = self.driver
        names = " ".join(f"'nvidia-cuda-{name}=={major}.{minor}.*'" for name in PACKAGES)
        packages = f"pip install {names} 'nvidia-nvvm=={major}.{minor}.*'"
        if major < SPLIT:
            packages = f"apt or dnf install cuda-toolkit-{major}-{minor}, from NVIDIA's repository"
        return (
            f"the driver here supports CUDA up to {major}.{minor}, and nvcc is of {release}: install a toolkit that the"
            f" driver serves ({packages}), name one by CUDA_HOME, or update the driver"
        )


def need_of(spec: OpSpec) -> Need | None:
    """Returns the need of the devices here; None if the op is built for another machine's devices."""
    here = machine.this_machine("cuda")
    modes = {archs.run_mode("cuda", name, spec.target.arch) for name in here.devices} - {""}
    return Need(here.driver, "ptx" in modes) if here.driver and modes else None


def choose(paths: Sequence[str], need: Need, layout: Layout, disk: Disk) -> str:
    """Returns the nvcc to be used: torch's own release or else the newest, of those that the driver serves.

    It is the first path if the driver serves none.
    """
    if len(paths) == 1:
        return paths[0]
    releases = {
        path: release for path in paths if (release := _release(path, layout, disk)) and need.is_met_by(release)
    }
    torchs_release = version_of(machine.torch_built_for("cuda") or "0.0")

    def preference(path: str) -> tuple[bool, bool, tuple[int, ...]]:
        release = version_of(releases[path])
        return release == torchs_release, release[0] == torchs_release[0], release

    # Of equal ones the first is taken: PATH comes first.
    return max(releases, key=preference, default=paths[0])


def _release(path: str, layout: Layout, disk: Disk) -> str:
    """Returns the CUDA release of an nvcc, such as 13.0; empty if it does not work."""

    def ask() -> probe.CompilerInfo:
        match = re.search(r"release (\d+\.\d+)", probe.run((path,), "--version"))
        program = os.path.realpath(path)
        release = match[1] if match else ""
        return {
            "identity": {"release": release},
            "stamps": {program: list(disk.stamp(program) or ())},
            "absent": [],
            "release": release,
        }

    name = ("release of nvcc", path, *programs.state((path,)))
    try:
        return str(probe.cached_info(name, {"release": str}, layout, disk, ask)["release"])
    except ToolchainError:
        return ""
