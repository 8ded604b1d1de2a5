"""One file a compiler. A toolchain finds itself, says who it is, and turns a plan into commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opforge.accelerator.target import Target
    from opforge.cache.filesystem.disk import Disk
    from opforge.cache.layout import Layout

    from .toolchain import Toolchain

TOOLCHAINS = {
    "host": "opforge.builders.toolchains.host:HostToolchain",
    "nvcc": "opforge.builders.toolchains.nvcc:Nvcc",
    "hipcc": "opforge.builders.toolchains.hipcc:Hipcc",
    "sycl": "opforge.builders.toolchains.sycl:Sycl",
    "opencl": "opforge.builders.toolchains.opencl:OpenCL",
    "triton": "opforge.builders.toolchains.triton:TritonToolchain",
}
"""Name to "module:Class"; a new compiler is one line here and one file beside this one."""
DEVICES = {"cpu": "host", "cuda": "nvcc", "hip": "hipcc", "xpu": "sycl", "opencl": "opencl"}
"""Which toolchain builds for a device. A builder for another one overrides `OpBuilder.toolchain`."""


def for_device(op: str, target: Target, layout: Layout, disk: Disk) -> Toolchain:
    """The toolchain that builds for this target. Raises ToolchainNotFoundError, OpIncompatibleError."""
    from opforge.errors import OpIncompatibleError

    if target.device not in DEVICES:
        reason = f"opforge has no toolchain for {target.device}; it has one for {', '.join(DEVICES)}"
        raise OpIncompatibleError(op, str(target), [f"{reason}. Override toolchain() in the op's builder"])
    made: Toolchain = _class_of(target.device)(layout, disk)
    return made


def portable(op: str, target: Target, layout: Layout, disk: Disk) -> Toolchain:
    """The toolchain for libraries that older systems load. Raises ToolchainNotFoundError, OpIncompatibleError."""
    from opforge import settings
    from opforge.errors import OpIncompatibleError

    from .zig import ZigToolchain, machine_of

    if target.device != "cpu":
        reason = f"portable libraries are built for the CPU; the compiler for {target.device} needs this system's own"
        raise OpIncompatibleError(op, str(target), [reason])
    if sysroot := settings.sysroot():
        from .sysroot import SysrootToolchain

        return SysrootToolchain(layout, disk, sysroot)
    return ZigToolchain(layout, disk, machine_of(target.arch))


def plan_env(device: str) -> tuple[str, ...]:
    """The variables that a plan for this device may depend on, besides the host's."""
    return tuple(_class_of(device).plan_env) if device in DEVICES else ()


def code_files(device: str, portable: bool) -> tuple[str, ...]:
    """The files of opforge's own that shape a plan for this device, besides the host's."""
    import os
    import sys

    if portable:
        folder = os.path.dirname(os.path.abspath(__file__))
        return os.path.join(folder, "zig.py"), os.path.join(folder, "sysroot.py")
    if device not in DEVICES:
        return ()
    modules = {one.__module__ for one in _class_of(device).__mro__ if one.__module__.startswith("opforge.")}
    modules |= {"opforge.accelerator.archs", "opforge.builders.lookup.device_requirements"}
    return tuple(sorted(str(sys.modules[name].__file__) for name in modules if name in sys.modules))


def _class_of(device: str) -> Any:
    import importlib

    module, _, attribute = TOOLCHAINS[DEVICES[device]].partition(":")
    return getattr(importlib.import_module(module), attribute)
