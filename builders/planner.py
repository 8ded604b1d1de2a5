"""From a builder and a toolchain to a plan, and what the plan takes from the builder and its surroundings.

Reads no file's content, starts no process but the toolchain's first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opforge import settings
from opforge.cache.current import current_store
from opforge.cache.records.inputs import Located
from opforge.errors import BuildResourceError, OpIncompatibleError, ToolchainError, ToolchainNotFoundError

from .spec import abi as abis
from .spec import kernel_roots
from .spec.build_plan import BuildPlan
from .toolchains import host

if TYPE_CHECKING:
    from .base import OpBuilder
    from .toolchains.toolchain import Toolchain


def question(builder: OpBuilder) -> list[Any]:
    """All that a plan takes from the builder, JSON-able."""
    abi, target = builder.abi, builder.target
    return [
        *(builder.name, builder.version, abi, str(target), builder.torch_target, builder.debug, builder.sanitize),
        (builder.portable, settings.sysroot() if builder.portable else ""),
        *(list(builder.sources), list(builder.include_dirs), sorted(builder.defines.items())),
        *(list(builder.cxx_flags), list(builder.link_flags), list(builder.libraries)),
        list(builder.device_flags.get(target.device, ())),
        [(root.name, root.include) for root in builder.kernel_roots],
        abis.part(abi, builder.name, builder.name, builder.torch_target).requires if abi == abis.TORCH else (),
    ]


def places(builder: OpBuilder) -> dict[str, str]:
    """Where each root of the builder's plan lies on this machine."""
    places = {root.name: root.path for root in builder.search_roots()}
    torch = abis.torch_folder() if builder.abi != abis.PLAIN else None
    if torch:
        places["torch"] = torch
    if builder.abi == abis.TORCH:
        places["python"] = abis.python_include()
    for number, folder in enumerate(builder.include_dirs):
        if os.path.isabs(folder) and not kernel_roots.holding(folder, builder.kernel_roots):
            places[f"include{number}"] = os.path.realpath(folder)
    places["system"] = "/"
    if builder.target.device != "cpu" or builder.portable:
        try:
            places.update(builder.toolchain(current_store()).root_paths())
        except (BuildResourceError, ToolchainNotFoundError, ToolchainError):
            pass  # what was prebuilt needs no compiler, and so none of its headers
    return places


def make_plan(
    builder: OpBuilder, toolchain: Toolchain, own_roots: Sequence[kernel_roots.KernelRoot], mode_flags: Sequence[str]
) -> BuildPlan:
    """The plan of `builder`. Raises SourceNotFoundError, OpIncompatibleError, SettingError."""
    target = builder.target
    objection = toolchain.target_problem(target.device, target.arch)
    if objection:
        raise OpIncompatibleError(builder.name, str(target), [objection])
    part = abis.part(builder.abi, builder.name, builder.name, builder.torch_target)
    if part.system_include and abis.torch_folder() is None:
        raise OpIncompatibleError(
            builder.name, str(target), ["torch is not installed, and the op's sources include it"]
        )
    user_compile, user_link = toolchain.flags()
    told = (*mode_flags, *builder.cxx_flags, *user_compile)
    # Debug information that nobody asked for comes in with a runtime's archives.
    bare = () if any(flag.startswith("-g") for flag in told) else ("-Wl,--strip-debug",)
    common = (f"-std={part.standard}", *host.BASE_FLAGS, *part.compile_flags)
    device = toolchain.part(builder.abi)
    return BuildPlan(
        op=builder.name,
        version=builder.version,
        abi=builder.abi,
        target=str(target),
        toolchain=toolchain.identity(),
        sources=kernel_roots.locate(builder.name, builder.sources, own_roots),
        include=(*_include_dirs(builder, own_roots), *_root_includes(own_roots)),
        system_include=(*part.system_include, *(device.system_include if device else ())),
        defines=(*part.defines, *(device.defines if device else ()), *sorted(builder.defines.items())),
        compile_flags=(
            *common,
            *toolchain.target_flags(target.device, target.arch),
            *builder.cxx_flags,
            *mode_flags,
            *user_compile,
        ),
        link_flags=(*part.link_flags, *(device.link_flags if device else ()), *builder.link_flags, *bare, *user_link),
        libraries=tuple(builder.libraries),
        stubs=(*part.stubs, *(device.stubs if device else ())),
        requires=(*part.requires, *(device.requires if device else ())),
        environment=toolchain.environment(),
        device_flags=(
            *toolchain.device_flags(target.arch, (*common, *mode_flags)),
            *builder.device_flags.get(target.device, ()),
        ),
        debug_roots=tuple(sorted(builder.places().items())) if "-g" in mode_flags else (),
    )


def _include_dirs(builder: OpBuilder, own_roots: Sequence[kernel_roots.KernelRoot]) -> list[Located]:
    """The builder's include folders. No path is in the key: one given by an absolute path, and in none of its kernel
    roots, is a root of its own."""
    found: list[Located] = []
    for number, folder in enumerate(builder.include_dirs):
        located = kernel_roots.locate(builder.name, [folder], own_roots)
        if os.path.isabs(folder) and not kernel_roots.holding(folder, builder.kernel_roots):
            located = (Located(f"include{number}", ""),)
        found += located
    return found


def _root_includes(own_roots: Sequence[kernel_roots.KernelRoot]) -> list[Located]:
    return [
        Located(root.name, root.include)
        for root in own_roots
        if root.include and os.path.isdir(os.path.join(root.path, root.include))
    ]
