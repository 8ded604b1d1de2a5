"""g++ and clang++: C++ for the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opforge.builders.spec.build_plan import BuildPlan, Step
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import RootedPath
from opforge.errors import SettingError, ToolchainNotFoundError

from . import PASSED_ENV, probe

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec

    from .toolchain import DevicePart

CANDIDATES = ("g++", "clang++")
LINKERS = ("ld.mold", "ld.lld")
"""Used where present, the first one: they link an op in half the time of the system's."""
PATH_FLAGS = ("-B", "--gcc-toolchain=", "-specs=", "--sysroot=")
"""The beginnings of flags that name other programs or folders of headers than the compiler's own."""
MACHINES = {"x86-64": "x86_64", "aarch64": "aarch64"}
ARCH_FLAGS = {"aarch64": "-march=armv8-a"}
BASE_FLAGS = (
    "-O3",
    "-fPIC",
    "-fvisibility-inlines-hidden",
    "-fdiagnostics-color=never",
)
INSTALL = "Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CXX to its path"


class HostToolchain:
    """The C++ compiler named by CXX, or the first of g++ and clang++ on PATH.

    `variable` is one that names it in CXX's stead, where it is set: a device compiler's own wish for its host.
    """

    shared_flags: tuple[str, ...] = ("-fsanitize", "-m", "-g")
    """What the linker is to be told too."""

    def __init__(self, layout: Layout, disk: Disk, variable: str = "") -> None:
        self._layout, self._disk = layout, disk
        self.argv = _find(variable if os.environ.get(variable) else "CXX")
        named = [flag.partition("=")[2] for flag in env_words("LDFLAGS") if flag.startswith("-fuse-ld=")]
        wanted = [f"ld.{name}" for name in named[-1:]] or LINKERS
        self.linker = next((path for name in wanted if (path := which(name))), "")
        self._cached_info: probe.CompilerInfo | None = None

    @property
    def _info(self) -> probe.CompilerInfo:
        """What the compiler says of itself, checked once for this object, which lives no longer than one load."""
        if self._cached_info is None:
            given = (*env_words("CPPFLAGS"), *env_words("CXXFLAGS"), *env_words("LDFLAGS"))
            path_flags = [
                flag
                for before, flag in zip(("", *given), (*given, ""), strict=True)
                if flag.startswith(PATH_FLAGS) or before in PATH_FLAGS
            ]
            self._cached_info = probe.host_info(self.argv, self.linker, self._layout, self._disk, path_flags)
        return self._cached_info

    @classmethod
    def find(cls, spec: OpSpec, layout: Layout, disk: Disk) -> HostToolchain:
        """Returns the toolchain for this spec: for a portable library zig's, or the compiler with the sysroot."""
        return portable(spec.target.arch, spec.sysroot, layout, disk) if spec.portable else cls(layout, disk)

    def programs(self) -> Mapping[str, list[int]]:
        stamps: Mapping[str, list[int]] = self._info["stamps"]
        return stamps

    def identity(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self._info["identity"].items()))

    @property
    def is_clang(self) -> bool:
        """Whether it speaks clang's dialect of flags."""
        return "clang" in self._info["version"]

    def target_problem(self, device: str, arch: Sequence[str]) -> str | None:
        machine, _, system = self._info["machine"].partition("-")
        wanted = MACHINES.get(arch[0].rpartition("-v")[0] or arch[0], "") if arch else machine
        if device != "cpu":
            return f"{self.argv[0]} compiles for the CPU, not for {device}"
        if "linux" not in system:
            return f"{self.argv[0]} builds for {system or machine}, and this version builds libraries for Linux"
        if wanted != machine:
            return f"{self.argv[0]} compiles for {machine}, not for {wanted or arch[0]}"
        return None

    def environment(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, os.environ[name]) for name in PASSED_ENV if os.environ.get(name))

    def flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        # A linker that LDFLAGS names comes later on the command line, and so wins.
        return env_words("CPPFLAGS") + env_words("CXXFLAGS"), (*self._info["linker_flags"], *env_words("LDFLAGS"))

    @property
    def precompiles(self) -> bool:
        """Whether it makes precompiled headers in gcc's way, which a compiler launcher could not follow."""
        return not self.is_clang and not launcher()

    def target_flags(self, device: str, arch: Sequence[str]) -> tuple[str, ...]:
        flags = tuple(ARCH_FLAGS.get(one, f"-march={one}") for one in arch)
        return flags if self.is_clang else (*flags, "-fno-gnu-unique")

    def search_folders(self) -> tuple[str, ...]:
        named = [os.environ.get("CPATH", ""), os.environ.get("CPLUS_INCLUDE_PATH", "")]
        own = [os.path.realpath(part) for value in named for part in value.split(os.pathsep) if part]
        return (*own, *self._info["search"])

    def root_paths(self) -> Mapping[str, str]:
        return {}

    def trusted_roots(self) -> Mapping[str, str]:
        return {}

    def part(self, abi: str) -> DevicePart | None:
        return None

    def device_flags(self, arch: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
        return ()

    def steps(self, plan: BuildPlan, roots: Mapping[str, str], library: str) -> list[Step]:
        units = [self.compile(plan, roots, source, name) for name, source in objects_of(plan)]
        return self.finish(plan, units, library)

    def finish(self, plan: BuildPlan, units: list[Step], library: str, device: Sequence[str] = ()) -> list[Step]:
        """The units' steps, and those that make the library of them; `device` goes to the linker, before the flags."""
        link = self._link(plan, [one.output for one in units if one.output.endswith(".o")], library, device)
        return [*(self._stub(name) for name in plan.stubs), *units, link]

    def compile(self, plan: BuildPlan, roots: Mapping[str, str], source: RootedPath, output: str) -> Step:
        path = absolute(source, roots)
        depfile = output + ".d"
        argv = [
            *launcher(),
            *self.argv,
            *(f"-D{name}={value}" if value else f"-D{name}" for name, value in plan.defines),
            *(option for folder in plan.include for option in ("-I", absolute(folder, roots))),
            *(option for folder in plan.system_include for option in ("-isystem", absolute(folder, roots))),
            *plan.compile_flags,
            *prefix_maps(plan, roots),
            *("-MD", "-MF", depfile, "-c", path, "-o", output),
        ]
        return Step(output, (path,), tuple(argv), f"compile {source.path}", depfile, source)

    def _stub(self, soname: str) -> Step:
        """A library with a name and nothing in it: the linker needs no more, and torch need not be here to link."""
        argv = (*self.argv, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-x", "c++", os.devnull, "-o", soname)
        return Step(soname, (), argv, f"name {soname}")

    def _link(self, plan: BuildPlan, objects: list[str], library: str, device: Sequence[str]) -> Step:
        # Archives and libraries that are linked in are inputs too, as far as the linker tells which it read.
        depfile = "link.d" if self._info["tells_archives"] else ""
        argv = [
            *self.argv,
            "-shared",
            *objects,
            *(flag for flag in plan.compile_flags if flag.startswith(self.shared_flags)),
            *("-Wl,--no-as-needed", *plan.stubs),
            *(f"-l{name}" for name in plan.libraries),
            "-Wl,-z,noexecstack",
            *device,
            *plan.link_flags,
            *([f"-Wl,--dependency-file={depfile}"] if depfile else []),
            *("-o", library),
        ]
        return Step(library, (*objects, *plan.stubs), tuple(argv), f"link {plan.op}", depfile)


def portable(arch: Sequence[str], sysroot: str, layout: Layout, disk: Disk) -> HostToolchain:
    """Returns the toolchain for libraries that older systems load. Raises ToolchainNotFoundError, SettingError."""
    if sysroot:
        from .sysroot import SysrootToolchain

        return SysrootToolchain(layout, disk, sysroot)
    from .zig import ZigToolchain, machine_of

    return ZigToolchain(layout, disk, machine_of(arch))


def objects_of(plan: BuildPlan) -> list[tuple[str, RootedPath]]:
    """Each source with the name of its object file."""
    stems = (os.path.splitext(os.path.basename(source.path))[0] for source in plan.sources)
    return [
        (f"{number}.{stem}.o", source) for number, (stem, source) in enumerate(zip(stems, plan.sources, strict=True))
    ]


def prefix_maps(plan: BuildPlan, roots: Mapping[str, str]) -> list[str]:
    """Keep the folders out of the binary, so that the same sources give the same bytes anywhere; not when debugging."""
    if "-g" in plan.compile_flags:
        return []
    used = {where.root for where in (*plan.sources, *plan.include, *plan.system_include)}
    return [f"-ffile-prefix-map={roots[name]}={name}" for name in sorted(used) if name in roots and name != "system"]


def absolute(where: RootedPath, roots: Mapping[str, str]) -> str:
    """The path of a file or folder on this machine."""
    return os.path.normpath(os.path.join(roots[where.root], where.path))


def env_words(variable: str) -> tuple[str, ...]:
    """The words of a variable, as a shell would take them apart. Raises SettingError."""
    value = os.environ.get(variable)
    if not value:
        return ()
    import shlex

    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise SettingError(variable, value, f"flags with balanced quotes ({error})") from error


def _find(variable: str) -> tuple[str, ...]:
    chosen = env_words(variable)
    if chosen:
        path = which(chosen[0])
        if path is None:
            searched = [f"{variable}={os.environ[variable]}"]
            raise ToolchainNotFoundError("C++ compiler", searched, f"Correct {variable}, or unset it.")
        return (path, *chosen[1:])
    for name in CANDIDATES:
        path = which(name)
        if path:
            return (path,)
    raise ToolchainNotFoundError("C++ compiler", [f"{name} on PATH" for name in CANDIDATES], INSTALL + ".")


def launcher() -> tuple[str, ...]:
    """The compiler launcher that was asked for. It changes no result, so it is in no key."""
    asked = env_words("OPFORGE_COMPILER_LAUNCHER")
    path = which(asked[0]) if asked else None
    if asked and path is None:
        searched = [f"OPFORGE_COMPILER_LAUNCHER={asked[0]}"]
        raise ToolchainNotFoundError("compiler launcher", searched, "Install it, or unset the variable.")
    return (path, *asked[1:]) if path else ()


def which(name: str) -> str | None:
    """The program's path. shutil.which answers the same in several times as long, and this is on every hit's way."""
    folders = [""] if os.path.dirname(name) else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return os.path.abspath(path)
    return None
