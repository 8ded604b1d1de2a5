"""What every device compiler shares: it stands beside a C++ compiler, which takes the host's sources and links."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

from opforge.builders.spec.build_plan import BuildPlan, Step
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath

from . import probe, source_translation
from .host import HostToolchain, absolute, objects_of
from .toolchain import DevicePart, Toolchain

SHAPE = {"root": str, "seal": str, "include": list, "lib": list}
"""What is known of every device compiler: where it lies, a file below that, its folders of headers and libraries."""


class DeviceToolchain(Toolchain):
    """A device compiler with its host compiler. A subclass finds itself, says who it is, and compiles one source.

    `root` names the root of its headers; sources that end in one of `suffixes` are its own, all others the host's.
    """

    device: ClassVar[str]
    root: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    host_variable: ClassVar[str] = ""
    """The variable that names another host compiler than CXX."""
    passed_env: ClassVar[tuple[str, ...]] = ()
    """The variables that the device compiler itself obeys."""
    translates: ClassVar[bool] = False
    """Whether it compiles what `source_translation.py` makes of a source, so that other rules are another toolchain."""
    plan_env: ClassVar[tuple[str, ...]] = ()
    """Every variable that a plan for the device may depend on, besides the host's: `passed_env` and those that name the
    compiler."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self._layout, self._disk = layout, disk
        self.host = HostToolchain(layout, disk, self.host_variable)
        self.argv = self._find()
        self._cached_info: probe.CompilerInfo | None = None

    def _find(self) -> tuple[str, ...]:
        """The command that starts the device compiler. Raises ToolchainNotFoundError."""
        raise NotImplementedError

    def _load_info(self) -> probe.CompilerInfo:
        """The compiler's record: see `probe.cached_info`; with SHAPE, and more of its own."""
        raise NotImplementedError

    def compile_device(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        """The command that compiles one of the device's own sources."""
        raise NotImplementedError

    def compile_host(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        """The command that compiles a source of the host."""
        return self.host.compile(plan, roots, source, output)

    def options(self, plan: BuildPlan, roots: Mapping[str, str]) -> list[str]:
        """The names and folders that a source is told of. The compiler's own headers come by themselves."""
        system = [absolute(folder, roots) for folder in plan.system_include if folder.root != self.root]
        return [
            *(f"-D{name}={value}" if value else f"-D{name}" for name, value in plan.defines),
            *(option for folder in plan.include for option in ("-I", absolute(folder, roots))),
            *(option for folder in system for option in ("-isystem", folder)),
        ]

    def accepts(self, code: str, *command: str) -> bool:
        """Whether the compiler accepts this command about an architecture: asked once, and cached_info."""

        def question() -> probe.CompilerInfo:
            status, _out, _said = probe.try_run(self.argv, *command)
            return {"identity": {"code": code}, "stamps": self.info["stamps"], "absent": [], "takes": status == 0}

        name = (*self.argv, *command)
        return bool(probe.cached_info(name, {"takes": bool}, self._layout, self._disk, question)["takes"])

    @property
    def info(self) -> probe.CompilerInfo:
        """What the device compiler says of itself, checked once for this object."""
        if self._cached_info is None:
            self._cached_info = self._load_info()
        return self._cached_info

    def identity(self) -> tuple[tuple[str, str], ...]:
        own = [(f"{self.root} {name}", value) for name, value in self.info["identity"].items()]
        if self.translates:
            own.append(("translation sha256", self._disk.digest(source_translation.__file__) or ""))
        return tuple(sorted([*self.host.identity(), *own]))

    def programs(self) -> Mapping[str, list[int]]:
        return {**self.host.programs(), **self.info["stamps"]}

    def environment(self) -> tuple[tuple[str, str], ...]:
        own = ((name, os.environ[name]) for name in self.passed_env if os.environ.get(name))
        return tuple(sorted([*self.host.environment(), *own]))

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.host.flags()

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        return self.host.target_flags("cpu", ())

    def search_folders(self) -> tuple[str, ...]:
        return (*self.host.search_folders(), *self.info["include"])

    def root_paths(self) -> Mapping[str, str]:
        return {self.root: self.info["root"]}

    def trusted_roots(self) -> Mapping[str, str]:
        # Its version headers are among its programs, so that another version of its headers is another toolchain.
        return {self.root: self.info["seal"]}

    def part(self, abi: str) -> DevicePart:
        return DevicePart(system_include=self.headers())

    def headers(self) -> tuple[RootedPath, ...]:
        """The folders of the device's headers, for sources of the host."""
        return tuple(RootedPath(self.root, os.path.relpath(one, self.info["root"])) for one in self.info["include"])

    def arch_problem(self, arch: Sequence[str]) -> str | None:
        """Why the device compiler cannot build for these architectures, or None."""
        raise NotImplementedError

    def target_problem(self, device: str, arch: Sequence[str]) -> str | None:
        if device != self.device:
            return f"{self.argv[0]} compiles for {self.device}, not for {device}"
        return self.host.target_problem("cpu", ()) or self.arch_problem(arch)

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        units = [
            (self.compile_device if source.path.endswith(self.suffixes) else self.compile_host)(
                plan, roots, source, name
            )
            for name, source in objects_of(plan)
        ]
        return self.host.finish(plan, units, library, [f"-L{one}" for one in self.info["lib"]])


def through(step: Step, path: str, made: str, folders: Sequence[str]) -> Step:
    """`step` with its source, at `path`, translated to `made` first, and the headers that it quotes too."""
    program = (sys.executable, "-I", "-S", os.path.abspath(source_translation.__file__))
    command = (made if word == path else word for word in step.argv)
    return step._replace(argv=(*program, step.depfile, path, made, *folders, "--", *command))
