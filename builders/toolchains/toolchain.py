"""The interface of a toolchain."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.builders.declaration.op_spec import OpSpec
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.errors import BuilderError, OpIncompatibleError
from opforge.foundation.lazy import cached_property


class DevicePart(NamedTuple):
    """The additions of a device to the plan of an op, besides the flags for the device's own sources."""

    defines: tuple[tuple[str, str], ...] = ()
    system_include: tuple[RootedPath, ...] = ()
    """The folders of its headers, each below a root of `root_paths`."""
    stubs: tuple[str, ...] = ()
    """Sonames of torch's libraries for the device."""
    link_flags: tuple[str, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()
    """Requirements of the binary on the machine that loads it, by name."""
    device_flags: tuple[str, ...] = ()
    """Flags of the device's compiler that the ABI needs. An op's own come later."""


class Toolchain(ABC):
    """A compiler that was found on this machine."""

    argv: tuple[str, ...]
    """The program and the arguments that always go with it."""
    plan_env: ClassVar[tuple[str, ...]] = ()
    """Every environment variable that a plan may depend on, besides those of the host's compiler."""

    @classmethod
    def find(cls, spec: OpSpec, layout: Layout, disk: Disk) -> Toolchain:
        """Returns the toolchain for this spec. Raises ToolchainNotFoundError, OpIncompatibleError, BuilderError."""
        if missing := sorted(cls.__abstractmethods__):
            problem = f"its toolchain {cls.__name__} has no method {', '.join(missing)}"
            raise BuilderError(spec.builder, problem, "Define them as its base class Toolchain describes them")
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

    @abstractmethod
    def identity(self) -> tuple[tuple[str, str], ...]:
        """Returns the toolchain's identity, as (name, text) for the plan key: versions and digests, no paths.

        The first call may start the compiler; `find_toolchain` makes it. Raises ToolchainError.
        """

    def has_changed(self) -> bool:
        """Returns whether another program, or another file of its own, is found now than when the plan was made."""
        again, kind = copy.copy(self), type(self)
        for name in [name for name in vars(self) if isinstance(getattr(kind, name, None), cached_property)]:
            del again.__dict__[name]
        return again.identity() != self.identity()

    def unlisted_files(self) -> list[str]:
        """Returns the compiler's own files that it may read for each source and does not list: headers, specs."""
        return []

    @abstractmethod
    def programs(self) -> Mapping[str, list[int]]:
        """Returns the paths of the programs that it runs, with their stamps. While these hold, so does `identity`."""

    @abstractmethod
    def target_problem(self, device: str, arch: Sequence[str]) -> str | None:
        """Returns why it cannot build for this target, or None if it can."""

    @abstractmethod
    def environment(self) -> tuple[tuple[str, str], ...]:
        """Returns the environment variables that it reads and that are set, by name."""

    @abstractmethod
    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the user's compile flags and link flags, from the environment."""

    @abstractmethod
    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        """Returns the flags that select the target, for sources of the host."""

    @abstractmethod
    def search_folders(self) -> tuple[str, ...]:
        """Returns the folders, in order, that it searches for headers by itself."""

    def first_folders(self) -> tuple[str, ...]:
        """Returns the part of `search_folders` that it searches before, or among, the folders that a command names."""
        return ()

    def library_folders(self) -> tuple[str, ...]:
        """Returns the folders, in order, that it searches for libraries by itself."""
        return ()

    @abstractmethod
    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        """Returns the commands that turn the plan into `library`, with paths relative to the build folder.

        `roots` maps each root of the plan to its path on this machine.
        """

    def root_paths(self) -> Mapping[str, str]:
        """Returns the roots that it adds, by name, with their paths: the folders of its own headers.

        A file below a root is in keys by its path below it.
        """
        return {}

    def outside(self, plan: BuildPlan, roots: Mapping[str, str]) -> list[RootedPath]:
        """Returns the folders outside of every root whose files are the op's own, each by the root that leads to it."""
        return plan.outside()

    def trusted_roots(self) -> Mapping[str, str]:
        """Returns the roots that change only together with the toolchain.

        Each is mapped to a file below it whose stamp is compared for all files of the root.
        """
        return {}

    def part(self, abi: str) -> DevicePart:
        """Returns the device's part of the plan of an op of this ABI; an empty one for the CPU.

        Raises ToolchainError if it cannot build such an op.
        """
        return DevicePart()

    def device_flags(self, arch: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
        """Returns the flags for the device's own sources; `flags` are those of a source of the host."""
        return ()


class HostedToolchain(Toolchain):
    """A toolchain beside a C++ compiler, which compiles the sources of the host, links, and answers for both."""

    host: Toolchain

    def has_changed(self) -> bool:
        return super().has_changed() or self.host.has_changed()

    def environment(self) -> tuple[tuple[str, str], ...]:
        return self.host.environment()

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.host.flags()

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        return self.host.target_flags("cpu", ())

    def search_folders(self) -> tuple[str, ...]:
        return self.host.search_folders()

    def first_folders(self) -> tuple[str, ...]:
        return self.host.first_folders()

    def library_folders(self) -> tuple[str, ...]:
        return self.host.library_folders()

    def unlisted_files(self) -> list[str]:
        return self.host.unlisted_files()

    def root_paths(self) -> Mapping[str, str]:
        return self.host.root_paths()

    def trusted_roots(self) -> Mapping[str, str]:
        return self.host.trusted_roots()
