"""A build plan with the settings of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from opforge.builders.declaration.build_plan import BuildPlan
from opforge.builders.toolchains.toolchain import Toolchain
from opforge.cache.layout import Layout

from . import ninja
from .memory_needs import MemoryNeeds


class Job(NamedTuple):
    """A plan with everything that is needed to run it."""

    plan: BuildPlan
    roots: Mapping[str, str]
    toolchain: Toolchain
    jobs: int
    layout: Layout
    """The store that objects are reused from, and whose logs folder keeps the output of a failed build."""
    torch_target: str
    portable: bool = False
    reuse: bool = True
    on_progress: ninja.Progress | None = None
    needs: MemoryNeeds | None = None
    """Memory needs of the compilers; None if they are not of interest."""
    is_chosen: bool = False
    """Whether the user has chosen `jobs`: then so many compilers run, whatever they need."""

    is_extension: bool = False
    """Whether the library is for a setup script, and imported without opforge."""

    @property
    def located_plan(self) -> BuildPlan:
        """The plan with the paths of this machine in its flags."""
        return self.plan.located(self.roots)

    @property
    def log(self) -> str:
        """The path at which the whole output of a failed build is kept."""
        return self.layout.path("logs", self.plan.key + ".log")
