"""From a spec and a toolchain to a build plan. Reads no file's content and starts no process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opforge.cache.records.inputs import RootedPath
from opforge.errors import OpIncompatibleError

from .spec import abi, flag_paths, installed_torch, kernel_roots
from .spec.build_plan import BuildPlan
from .spec.op_spec import is_own_root, root_paths
from .toolchains.host import BASE_FLAGS

if TYPE_CHECKING:
    from .spec.op_spec import OpSpec
    from .toolchains.toolchain import Toolchain


def make_plan(spec: OpSpec, toolchain: Toolchain) -> BuildPlan:
    """Returns the build plan.

    Raises:
        SourceNotFoundError: A source is in none of the roots.
        OpIncompatibleError: torch is missing.
        SettingError: A variable that names flags cannot be read.
    """
    target = spec.target
    part = abi.part(spec.abi, spec.name, spec.name, spec.torch_target)
    if part.system_include and installed_torch.torch_folder() is None:
        raise OpIncompatibleError(spec.name, str(target), ["torch is not installed, and the op's sources include it"])
    user_compile, user_link = toolchain.flags()
    compile_flags = (*spec.mode_flags, *spec.cxx_flags, *user_compile)
    # The archives of a device's runtime carry debug information: without -g it would only make the library larger.
    strip = () if any(flag.startswith("-g") for flag in compile_flags) else ("-Wl,--strip-debug",)
    common = (f"-std={part.standard}", *BASE_FLAGS, *part.compile_flags)
    device = toolchain.part(spec.abi)
    defines, stubs = part.defines, (*part.stubs, *(device.stubs if device else ()))
    if spec.extension_libraries is not None:
        defines, stubs = tuple(define for define in defines if define != abi.LOADS), spec.extension_libraries
    return BuildPlan(
        op=spec.name,
        version=spec.version,
        abi=spec.abi,
        target=str(target),
        toolchain=toolchain.identity(),
        sources=kernel_roots.locate(spec.name, spec.sources, spec.roots),
        include=(*include_folders(spec), *_root_includes(spec)),
        system_include=(*part.system_include, *(device.system_include if device else ())),
        defines=(*defines, *(device.defines if device else ()), *spec.defines),
        compile_flags=flag_paths.named(
            (
                *common,
                *toolchain.target_flags(target.device, target.arch),
                *spec.cxx_flags,
                *spec.mode_flags,
                *user_compile,
            ),
            spec.roots,
        ),
        link_flags=flag_paths.named(
            (*part.link_flags, *(device.link_flags if device else ()), *spec.link_flags, *strip, *user_link), spec.roots
        ),
        libraries=spec.libraries,
        stubs=stubs,
        requires=(*part.requires, *(device.requires if device else ())),
        environment=toolchain.environment(),
        device_flags=flag_paths.named(
            (*toolchain.device_flags(target.arch, (*common, *spec.mode_flags)), *spec.device_flags), spec.roots
        ),
        debug_roots=tuple(sorted(root_paths(spec, toolchain.root_paths()).items())) if "-g" in compile_flags else (),
        kernels=spec.kernels,
    )


def include_folders(spec: OpSpec) -> list[RootedPath]:
    """Returns the include folders, by root: an absolute path is in no key, so its number stands for it."""
    folders: list[RootedPath] = []
    for number, folder in enumerate(spec.include_dirs):
        located = kernel_roots.locate(spec.name, [folder], spec.roots)
        folders += (RootedPath(f"include{number}", ""),) if is_own_root(spec, folder) else located
    return folders


def _root_includes(spec: OpSpec) -> list[RootedPath]:
    return [
        RootedPath(root.name, root.include)
        for root in spec.roots
        if root.include and os.path.isdir(os.path.join(root.path, root.include))
    ]
