"""What every toolchain offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from opforge.builders.plan import BuildPlan, Step


class Toolchain(Protocol):
    """A compiler that was found on this machine."""

    argv: tuple[str, ...]
    """The program and the arguments that always go with it."""

    @property
    def precompiles(self) -> bool:
        """Whether its steps may be changed to share a precompiled header: see builders/precompiled.py."""
        return False

    def identity(self) -> tuple[tuple[str, str], ...]:
        """Who it is, as named facts for the key: versions and digests, no paths. Raises ToolchainError."""

    def programs(self) -> Mapping[str, list[int]]:
        """The paths of the programs that it runs and their stamps: while these hold, it is who it was."""

    def objection(self, device: str, arch: Sequence[str]) -> str | None:
        """Why it cannot build for this target, or None."""

    def environment(self) -> tuple[tuple[str, str], ...]:
        """The environment variables that it obeys and that are set, by name."""

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The user's compile flags and link flags, from the environment."""

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        """The flags that choose the target."""

    def search_folders(self) -> tuple[str, ...]:
        """The folders, in order, that it searches for headers by itself."""

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        """The commands that turn the plan into `library`, with paths relative to the build folder."""
