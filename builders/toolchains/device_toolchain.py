"""The base of every device compiler: a C++ compiler beside it compiles the host's sources and links the library."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

from opforge.builders.declaration.build_plan import BuildPlan, Step
from opforge.builders.declaration.op_spec import OpSpec
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.foundation.lazy import cached_property

from . import source_translation
from .discovery import probe, programs
from .host import HostToolchain, objects_of, plan_options
from .toolchain import DevicePart, HostedToolchain, Toolchain

SHAPE = {"root": str, "stamp_file": str, "include": list, "lib": list}
"""The entries of every device compiler's info, with their types.

`root` is the folder that it is installed in, or empty if it has none; `stamp_file` a file below it whose stamp is
compared for all its files; `include` and `lib` are its folders of headers and libraries.
"""


class DeviceToolchain(HostedToolchain):
    """A device compiler with its host compiler. A subclass finds it, probes it, and compiles one source."""

    host: HostToolchain
    device: ClassVar[str]
    root: ClassVar[str]
    """The name of the root below which its headers are."""
    suffixes: ClassVar[tuple[str, ...]]
    """Sources that end in one of these are the device's own; the host compiler compiles all others."""
    host_variable: ClassVar[str] = ""
    """The variable that names another host compiler than CXX."""
    passed_env: ClassVar[tuple[str, ...]] = ()
    """The variables that the device compiler itself reads."""
    translates: ClassVar[bool] = False
    """Whether it compiles what source_translation.py writes: then this file's digest is part of its identity."""
    plan_env: ClassVar[tuple[str, ...]] = ()
    """Every variable that a plan for the device may depend on, besides the host's: `passed_env` and those that name the
    compiler."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self._layout, self._disk = layout, disk
        self.host = HostToolchain(layout, disk, self.host_variable)
        self.argv = self._find()

    @classmethod
    def find(cls, spec: OpSpec, layout: Layout, disk: Disk) -> Toolchain:
        toolchain = super().find(spec, layout, disk)
        if isinstance(toolchain, DeviceToolchain):
            toolchain.host.op_flags = spec.search_flags
        return toolchain

    def _find(self) -> tuple[str, ...]:
        """Returns the command that starts the device compiler. Raises ToolchainNotFoundError."""
        raise NotImplementedError

    def _load_info(self) -> probe.CompilerInfo:
        """Returns the compiler's info, by `probe.cached_info`: SHAPE, and entries of its own. Raises ToolchainError."""
        raise NotImplementedError

    def compile_device(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        """Returns the command that compiles one of the device's own sources to an object."""
        raise NotImplementedError

    def compile_host(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        """Returns the command that compiles a source of the host to an object."""
        return self.host.compile(plan, roots, source, output)

    def options(self, plan: BuildPlan, roots: Mapping[str, str]) -> list[str]:
        """Returns the plan's definitions and include folders as options, without the compiler's own headers."""
        others = tuple(folder for folder in plan.system_include if folder.root != self.root)
        return plan_options(plan._replace(system_include=others), roots)

    def accepts(self, code: str, *options: str) -> bool:
        """Returns whether the compiler accepts options that name the architecture `code`. The result is stored."""

        def try_options() -> probe.CompilerInfo:
            status, _out, _err = probe.try_run(self.argv, *options)
            return {"identity": {"code": code}, "stamps": self.info["stamps"], "absent": [], "takes": status == 0}

        name = (*self.argv, *options)
        return bool(probe.cached_info(name, {"takes": bool}, self._layout, self._disk, try_options)["takes"])

    @cached_property
    def info(self) -> probe.CompilerInfo:
        """The device compiler's info, checked once for this object."""
        return self._load_info()

    def identity(self) -> tuple[tuple[str, str], ...]:
        own = [(f"{self.root} {name}", value) for name, value in self.info["identity"].items()]
        if self.translates:
            own.append(("translation sha256", self._translation_digest))
        return tuple(sorted([*self.host.identity(), *own]))

    @cached_property
    def _translation_digest(self) -> str:
        """The digest of the translation's code, read once for this object: planning reads no file's content."""
        return self._disk.digest(source_translation.__file__) or ""

    def programs(self) -> Mapping[str, list[int]]:
        return {**self.host.programs(), **self.info["stamps"], **self.info.get("folders", {})}

    def environment(self) -> tuple[tuple[str, str], ...]:
        names = (*self.passed_env, *programs.own_variables(self.argv))
        own = {name: os.environ[name] for name in names if os.environ.get(name)}
        return tuple(sorted({**dict(super().environment()), **own}.items()))

    def search_folders(self) -> tuple[str, ...]:
        return (*super().search_folders(), *self.info["include"])

    def library_folders(self) -> tuple[str, ...]:
        return (*self.info["lib"], *super().library_folders())

    def root_paths(self) -> Mapping[str, str]:
        return {self.root: self.info["root"]} if self.info["root"] else {}

    def trusted_roots(self) -> Mapping[str, str]:
        # The headers that state a version are among its programs: other headers are another toolchain.
        return {self.root: self.info["stamp_file"]} if self.root_paths() else {}

    def part(self, abi: str) -> DevicePart:
        return DevicePart(system_include=self.headers())

    def headers(self) -> tuple[RootedPath, ...]:
        """Returns the folders of the device's headers, for sources of the host."""
        root = self.info["root"]
        return tuple(RootedPath(self.root, os.path.relpath(folder, root)) for folder in self.info["include"])

    def arch_problem(self, arch: Sequence[str]) -> str | None:
        """Returns why the device compiler cannot build for these architectures, or None if it can."""
        raise NotImplementedError

    def target_problem(self, device: str, arch: Sequence[str]) -> str | None:
        if device != self.device:
            return f"{self.argv[0]} compiles for {self.device}, not for {device}"
        return self.host.target_problem("cpu", ()) or self.arch_problem(arch)

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        units = [
            (self.compile_device if source.path.endswith(self.suffixes) else self.compile_host)(
                plan.of(source), roots, source, name
            )
            for name, source in objects_of(plan)
        ]
        return self.host.finish(plan, units, library, [f"-L{folder}" for folder in self.info["lib"]])


def translate_first(step: Step, path: str, translation: str, folders: Sequence[str]) -> Step:
    """Returns a step that writes the translation of its source first and compiles that.

    Args:
        step: The step that would compile the source itself.
        path: The path of the source.
        translation: The path of its translation.
        folders: Where quoted headers are found. These are translated too.
    """
    program = (sys.executable, "-I", "-S", os.path.abspath(source_translation.__file__))
    command = (translation if word == path else word for word in step.argv)
    return step._replace(argv=(*program, step.depfile, path, translation, *folders, "--", *command))
