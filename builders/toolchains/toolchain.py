"""What every toolchain offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from opforge.builders.spec.build_plan import BuildPlan, Step
from opforge.cache.records.inputs import RootedPath
from opforge.errors import OpIncompatibleError

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec
    from opforge.cache.filesystem.disk import Disk
    from opforge.cache.layout import Layout


class DevicePart(NamedTuple):
    """What a device adds to the plan of an op, besides the flags for its own sources."""

    defines: tuple[tuple[str, str], ...] = ()
    system_include: tuple[RootedPath, ...] = ()
    """Where its headers lie, below a root that `root_paths` names."""
    stubs: tuple[str, ...] = ()
    """Sonames of torch's libraries for the device."""
    link_flags: tuple[str, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()
    """What the binary asks of the machine that loads it, by name."""


class Toolchain(Protocol):
    """A compiler that was found on this machine. Subclass it: what has a body here need not be written again."""

    argv: tuple[str, ...]
    """The program and the arguments that always go with it."""
    plan_env: ClassVar[tuple[str, ...]] = ()
    """Every environment variable that a plan may depend on, besides those of the host's compiler."""

    @classmethod
    def find(cls, spec: OpSpec, layout: Layout, disk: Disk) -> Toolchain:
        """Returns the toolchain for this spec. Raises ToolchainNotFoundError, OpIncompatibleError."""
        if spec.portable:
            device = spec.target.device
            reason = f"portable libraries are built for the CPU; the compiler for {device} needs this system's own"
            raise OpIncompatibleError(spec.name, str(spec.target), [reason])
        toolchain: Toolchain = cls(layout, disk)  # type: ignore[call-arg]
        return toolchain

    @property
    def precompiles(self) -> bool:
        """Whether its steps may be changed to share a precompiled header: see builders/run/precompiled_header.py."""
        return False

    def identity(self) -> tuple[tuple[str, str], ...]:
        """Who it is, as named facts for the key: versions and digests, no paths. Raises ToolchainError."""

    def programs(self) -> Mapping[str, list[int]]:
        """The paths of the programs that it runs and their stamps: while these hold, it is who it was."""

    def target_problem(self, device: str, arch: Sequence[str]) -> str | None:
        """Why it cannot build for this target, or None."""

    def environment(self) -> tuple[tuple[str, str], ...]:
        """The environment variables that it obeys and that are set, by name."""

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The user's compile flags and link flags, from the environment."""

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        """The flags that choose the target, for sources of the host."""

    def search_folders(self) -> tuple[str, ...]:
        """The folders, in order, that it searches for headers by itself."""

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        """The commands that turn the plan into `library`, with paths relative to the build folder."""

    def root_paths(self) -> Mapping[str, str]:
        """The roots that it adds, by name: where its own headers lie. A file below one is known by its path there."""
        return {}

    def trusted_roots(self) -> Mapping[str, str]:
        """Those of its roots that change only when it changes itself, each with a file below it to go by."""
        return {}

    def part(self, abi: str) -> DevicePart | None:
        """What its device adds to the plan of an op of this ABI. Raises ToolchainError where it cannot serve that."""
        return None

    def device_flags(self, arch: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
        """The flags for the device's own sources; `flags` are those that a source of the host would get."""
        return ()
