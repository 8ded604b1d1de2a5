"""From a spec and a toolchain to a build plan. Reads no file's content and starts no process."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from opforge.cache.records.inputs import RootedPath
from opforge.errors import BuilderError, OpIncompatibleError
from opforge.foundation.versions import version_of

from .declaration import abi, attributes, flag_paths, kernel_roots, machine
from .declaration.build_plan import BuildPlan, PlannedGroup
from .declaration.groups import SourceGroup
from .declaration.include_folders import group_folders, include_folders
from .declaration.op_spec import OpSpec, root_paths
from .facade import flags as facade_headers
from .toolchains.host import BASE_FLAGS
from .toolchains.toolchain import DevicePart, Toolchain

LISTS = frozenset({"-MD", "-MMD", "-MP", "-MV", "--write-dependencies", "--write-user-dependencies"})
LIST_NAMES = ("-MF", "-MT", "-MQ", "-Wp,-MD,", "-Wp,-MMD,")
"""Flags of dependency lists, alone and with a name in the same word or in the next one."""
STRIPS = frozenset({"-s", "-S", "--strip-all", "--strip-debug", "-strip-all", "-strip-debug"})
PASSED_ON = ("-Xclang", "-Xcompiler", "-Xpreprocessor")
"""Options that pass the next flag to another program."""


def make_plan(spec: OpSpec, toolchain: Toolchain) -> BuildPlan:
    """Returns the build plan.

    Raises:
        SourceNotFoundError: A source is in none of the roots.
        OpIncompatibleError: torch is missing.
        SettingError: A variable that names flags cannot be read.
        BuilderError: A file of flags has a relative path.
    """
    target, part = spec.target, abi.part(spec.abi, spec.name, spec.name, spec.torch_target)
    if problem := _torch_problem(spec):
        raise OpIncompatibleError(spec.name, str(target), [problem])
    file, word = flag_paths.relative_in_files(spec.search_flags, spec.roots[0].path)
    if file:
        wanted = "Expected absolute paths, as compilers run in a folder of their own; or put the flag into the builder"
        raise BuilderError(spec.name, f"{file} has the relative path {word!r}", wanted)
    device = toolchain.part(spec.abi)
    user_compile, user_link = toolchain.flags()
    optional = (*spec.mode_flags, *spec.cxx_flags, *(flag for group in spec.groups for flag in group.cxx_flags))
    debug_flags = [flag for flag in (*optional, *user_compile) if flag.startswith("-g")]
    # The archives of a device's runtime carry debug information: without -g it would only make the library larger.
    strip = () if debug_flags or _strips((*spec.link_flags, *user_link)) else ("-Wl,--strip-debug",)
    common = (f"-std={part.standard}", *BASE_FLAGS, *part.compile_flags)
    flags = _Flags(spec, toolchain, common, device.device_flags, user_compile, part.fixed)
    include = (
        *include_folders(spec, spec.include_dirs),
        *[RootedPath(root.name, root.include) for root in spec.roots if kernel_roots.has_headers(root)],
    )
    defines = _defines(spec, part, device)
    return BuildPlan(
        op=spec.name,
        version=spec.version,
        abi=spec.abi,
        target=str(target),
        toolchain=toolchain.identity(),
        sources=kernel_roots.locate(spec.name, spec.sources, spec.roots),
        include=include,
        system_include=(*part.system_include, *device.system_include),
        defines=defines,
        compile_flags=flags.of_host(),
        link_flags=flag_paths.named(
            (*part.link_flags, *device.link_flags, *spec.link_flags, *strip, *user_link), spec.roots
        ),
        libraries=spec.libraries,
        stubs=spec.extension_libraries if spec.extension_libraries is not None else (*part.stubs, *device.stubs),
        requires=(*part.requires, *device.requires, *_own_requirements(spec, (*optional, *user_compile), toolchain)),
        environment=toolchain.environment(),
        device_flags=flags.of_device(),
        debug_roots=tuple(sorted(root_paths(spec, toolchain.root_paths()).items())) if "-g" in debug_flags else (),
        kernels=spec.kernels,
        groups=tuple(_planned(group, flags, (*own, *include), defines) for group, own in group_folders(spec)),
    )


def _strips(flags: Sequence[str]) -> bool:
    """Returns whether flags say themselves what the linker strips: of several such, it obeys the last."""
    words = [word for flag in flags for word in flag.split(",")]
    return any(word in STRIPS or word.lstrip("-").startswith("retain-symbols-file") for word in words)


class _Flags(NamedTuple):
    """The compilers' flags of a spec, in their order: later ones win."""

    spec: OpSpec
    toolchain: Toolchain
    common: tuple[str, ...]
    """The flags that opforge and the ABI give every source."""
    of_abi: tuple[str, ...]
    """The flags that the ABI gives the device's own sources."""
    user: tuple[str, ...]
    """The flags in the user's variables."""
    fixed: tuple[str, ...]
    """Macros that none of these may change."""

    def of_host(self, *more: str) -> tuple[str, ...]:
        """Returns the host compiler's flags; `more` are a group's own."""
        spec, target = self.spec, self.spec.target
        arch = self.toolchain.target_flags(target.device, target.arch)
        flags = (*self.common, *arch, *spec.cxx_flags, *more, *spec.mode_flags, *self.user)
        return flag_paths.named(_without_lists(_without_macros(flags, self.fixed)), spec.roots)

    def of_device(self, arch: tuple[str, ...] = (), *more: str) -> tuple[str, ...]:
        """Returns the device compiler's flags; `arch` and `more` are a group's own."""
        spec = self.spec
        arch = arch or spec.own_arch or spec.target.arch
        flags = self.toolchain.device_flags(arch, (*self.common, *spec.mode_flags))
        flags = (*flags, *self.of_abi, *spec.device_flags, *more)
        return flag_paths.named(_without_lists(_without_macros(flags, self.fixed)), spec.roots)


def _planned(
    group: SourceGroup, flags: _Flags, include: tuple[RootedPath, ...], defines: tuple[tuple[str, str], ...]
) -> PlannedGroup:
    """Returns the plan of a group of sources, which replaces macros of the op and adds to its flags."""
    own = {name: value for name, value in group.defines if name not in flags.fixed}
    return PlannedGroup(
        sources=kernel_roots.locate(flags.spec.name, group.sources, flags.spec.roots),
        include=include,
        defines=(*(define for define in defines if define[0] not in own), *own.items()),
        compile_flags=flags.of_host(*group.cxx_flags),
        device_flags=flags.of_device(group.arch, *group.device_flags),
    )


def _defines(spec: OpSpec, part: abi.AbiPart, device: DevicePart) -> tuple[tuple[str, str], ...]:
    """Returns the macros of the ABI and of the device, then the op's own: a second -D of a name is a warning."""
    of_abi = part.defines
    if spec.extension_libraries is not None:
        of_abi = tuple(define for define in of_abi if define not in abi.LOADS)
    own = [(name, value) for name, value in spec.defines if name not in part.fixed]
    return (*(define for define in of_abi if define[0] not in dict(own)), *device.defines, *own)


def _without_macros(flags: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Returns the flags without those that define one of these macros, or undefine it."""
    kept = list[str]()
    for flag in flags:
        is_second = bool(kept) and kept[-1] in ("-D", "-U")
        macro = flag if is_second else flag[2:] if flag.startswith(("-D", "-U")) else ""
        if macro.partition("=")[0] not in names:
            kept.append(flag)
        elif is_second:
            kept.pop()
    return tuple(kept)


def _own_requirements(spec: OpSpec, flags: Sequence[str], toolchain: Toolchain) -> tuple[tuple[str, str], ...]:
    """Returns the requirements of this op's library besides its ABI: those of its attributes, and one processor."""
    of_devices = (*spec.device_flags, *(flag for group in spec.groups for flag in group.device_flags))
    native = machine.native_processor((*flags, *of_devices, *getattr(toolchain, "argv", ())))
    return (*attributes.requirements(spec), *(((machine.PROCESSOR, native),) if native else ()))


def _without_lists(flags: Sequence[str]) -> tuple[str, ...]:
    """Returns the flags without those that say which files a compiler lists, and where.

    opforge needs the whole list: with -MMD a compiler leaves out the headers in the folders of -isystem.
    """
    kept = [
        flag
        for before, flag in pairwise(("", *flags))
        if before in PASSED_ON or not (flag in LISTS or flag.startswith(LIST_NAMES) or before in LIST_NAMES)
    ]
    return tuple(kept)


def _torch_problem(spec: OpSpec) -> str | None:
    """Returns why the op cannot be built with what is installed, or None."""
    if problem := attributes.unmet(dict(attributes.requirements(spec))):
        return problem
    if spec.abi not in abi.ON_STABLE:
        return None
    folder = machine.torch_folder()
    if folder is None:
        return "torch is not installed, and the op's sources include it"
    here = machine.torch_version(folder)
    if version_of(here)[:2] < version_of(spec.torch_target):
        return f"torch_target={spec.torch_target!r} is newer than the installed torch {here}: install it, or lower it"
    if spec.abi == abi.FACADE and (absent := facade_headers.missing(os.path.join(folder, "include"))):
        return f"torch {here} is installed without the headers that the facade is written on: there is no {absent}"
    return None
