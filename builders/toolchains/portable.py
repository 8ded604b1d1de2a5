"""The toolchain of host code: the host's compiler, or for portable libraries a sysroot's or zig's."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opforge.builders.declaration.op_spec import OpSpec
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout

from .host import HostToolchain, machine_of
from .zig import ZigToolchain


def find_for_cpu(spec: OpSpec, layout: Layout, disk: Disk) -> HostToolchain:
    """Returns the toolchain for the host code of this spec. Raises ToolchainNotFoundError, SettingError."""
    if not spec.portable:
        return HostToolchain.find(spec, layout, disk)
    toolchain = find_portable(spec.target.arch, spec.sysroot, layout, disk)
    toolchain.op_flags = spec.search_flags
    return toolchain


def find_portable(arch: Sequence[str], sysroot: str, layout: Layout, disk: Disk) -> HostToolchain:
    """Returns the toolchain for libraries that older systems load. Raises ToolchainNotFoundError, SettingError."""
    if sysroot:
        from .sysroot import SysrootToolchain

        return SysrootToolchain(layout, disk, sysroot)

    return ZigToolchain(layout, disk, machine_of(arch, os.uname().machine))
