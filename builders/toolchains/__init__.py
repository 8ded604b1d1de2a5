"""One file for each compiler: a toolchain finds it, identifies it, and turns a plan into commands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opforge import settings

if TYPE_CHECKING:
    from opforge.builders.spec.op_spec import OpSpec
    from opforge.cache.store import Store

    from .toolchain import Toolchain

HOST = "opforge.builders.toolchains.host:HostToolchain"
FIND_FOR_CPU = "opforge.builders.toolchains.portable:find_for_cpu"
"""Finds the host's compiler, or for a portable library another one."""
TOOLCHAINS = {
    "host": HOST,
    "nvcc": "opforge.builders.toolchains.nvcc:Nvcc",
    "hipcc": "opforge.builders.toolchains.hipcc:Hipcc",
    "sycl": "opforge.builders.toolchains.sycl:Sycl",
    "opencl": "opforge.builders.toolchains.opencl:OpenCL",
    "triton": "opforge.builders.toolchains.triton:TritonToolchain",
}
"""Name -> "module:Class". A new compiler is one line here and one file beside this one."""
DEVICES = {"cpu": "host", "cuda": "nvcc", "hip": "hipcc", "xpu": "sycl", "opencl": "opencl"}
"""Device -> the toolchain that builds for it. A builder for another device names one in `OpBuilder.toolchain`."""
PASSED_ENV = (
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "LPATH",
    "LD_RUN_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "GCC_ROOT",
    "G++_ROOT",
    "BINUTILS_ROOT",
    "GNUTARGET",
    "LDEMULATION",
    "CCC_OVERRIDE_OPTIONS",
)
"""The variables that the host's compilers read. Their values are part of the plan key.

gcc adds the folders of LPATH to those of LIBRARY_PATH, and takes the three of _ROOT for the prefix that it, its headers
of C++ and its assembler were installed with. The assembler and the linker read GNUTARGET, the linker LDEMULATION.

SOURCE_DATE_EPOCH is none of them: it changes only what __DATE__, __TIME__ and __TIMESTAMP__ in a file stand for.
"""
WRAPPER_ENV = ("OMPI_", "OPAL_", "MPICH_", "NIX_", "SPACK_", "CRAY_", "PE_")
"""Prefixes of the variables that compiler wrappers read. Their values are part of the plan key of a wrapper."""
_WRAPPER_ENV = tuple(prefix.encode() for prefix in WRAPPER_ENV)
_BEGINNINGS = frozenset(prefix[:3] for prefix in _WRAPPER_ENV)
LAUNCHER_ENV = (
    "OMPI_APP_CTX_",
    "OMPI_ARGV",
    "OMPI_COMMAND",
    "OMPI_COMM_WORLD_",
    "OMPI_FILE_LOCATION",
    "OMPI_FIRST_RANKS",
    "OMPI_MCA_",
    "OMPI_NUM_APP_CTX",
    "OMPI_UNIVERSE_SIZE",
    "OPAL_OUTPUT_",
    "OPAL_USER_PARAMS_GIVEN",
    "NIX_BUILD_CORES",
    "NIX_BUILD_TOP",
    "NIX_LOG_FD",
)
"""Prefixes of those among them that differ from process to process or from build to build, and that no wrapper reads.
"""
_LAUNCHER_ENV = tuple(prefix.encode() for prefix in LAUNCHER_ENV)
PLAN_ENV = ("PATH", "CXX", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "LANG", *PASSED_ENV)
"""Every variable that the plan of a host op may depend on. They are here so that a hit need not import host.py."""
_PLAN_ENV = frozenset(name.encode() for name in PLAN_ENV)
_BUILDERS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOST_CODE = tuple(
    os.path.join(_BUILDERS, *name.split("/"))
    for name in (
        "planner.py",
        "spec/abi.py",
        "spec/build_plan.py",
        "spec/flag_paths.py",
        "spec/kernel_roots.py",
        "spec/op_spec.py",
        "toolchains/__init__.py",
        "toolchains/host.py",
        "toolchains/discovery/probe.py",
        "toolchains/discovery/programs.py",
        "toolchains/toolchain.py",
    )
)
_PORTABLE_CODE = tuple(os.path.join(_BUILDERS, "toolchains", name) for name in ("portable.py", "zig.py", "sysroot.py"))


def find_toolchain(spec: OpSpec, store: Store) -> Toolchain:
    """Returns the toolchain that builds this spec, with its compilers identified: planning starts no process.

    Raises:
        ToolchainNotFoundError: There is no such compiler.
        ToolchainError: The compiler does not work.
        OpIncompatibleError: It cannot build for the target.
        BuildResourceError: The machine ran out of memory, processes or files.
    """
    from opforge.errors import OpIncompatibleError

    import_path = _import_path(spec)
    if not import_path:
        reason = f"opforge has no toolchain for {spec.target.device}; it has one for {', '.join(DEVICES)}"
        advice = "Name one in the builder's `toolchain`, as module:Class"
        raise OpIncompatibleError(spec.name, str(spec.target), [f"{reason}. {advice}"])
    find = _import(FIND_FOR_CPU, spec) if import_path == HOST else _import(import_path, spec).find
    toolchain: Toolchain = find(spec, store.layout, store.disk)
    toolchain.identity()
    problem = toolchain.target_problem(spec.target.device, spec.target.arch)
    if problem:
        raise OpIncompatibleError(spec.name, str(spec.target), [problem])
    return toolchain


def plan_variables(spec: OpSpec) -> list[tuple[bytes, bytes]]:
    """Returns the variables that the spec's plan may depend on and that are set, with their values, sorted by name."""
    import_path = _import_path(spec)
    own = () if import_path in ("", HOST) else _import(import_path, spec).plan_env
    further = [name.encode() for name in (*own, *settings.compiler_variables())]
    names = {*_PLAN_ENV, *further} if further else _PLAN_ENV
    environment = settings.environment()
    set_here = [name for name in environment if name in names or (name[:3] in _BEGINNINGS and _is_wrappers(name))]
    return [(name, environment[name]) for name in sorted(set_here)]


def wrapper_variables() -> list[str]:
    """Returns the names of the variables that are set and that a compiler wrapper may read, sorted."""
    return sorted(os.fsdecode(name) for name in settings.environment() if _is_wrappers(name))


def is_wrappers(name: str) -> bool:
    """Returns whether a compiler wrapper may read this variable."""
    return _is_wrappers(os.fsencode(name))


def _is_wrappers(name: bytes) -> bool:
    return name.startswith(_WRAPPER_ENV) and not name.startswith(_LAUNCHER_ENV)


def plan_code(spec: OpSpec) -> tuple[str, ...]:
    """Returns the files of opforge, or of the package that the toolchain comes from, that shape the spec's plan."""
    import_path = _import_path(spec)
    code = (*HOST_CODE, *_PORTABLE_CODE) if spec.portable else HOST_CODE
    if import_path in ("", HOST):
        return code
    import sys

    modules = {
        kind.__module__ for kind in _import(import_path, spec).__mro__ if kind.__module__ not in ("builtins", "typing")
    }
    modules |= {"opforge.accelerator.archs", "opforge.builders.toolchains.discovery.cuda_toolkits"}
    files = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    return (*code, *sorted(path for path in files if path))


def _import_path(spec: OpSpec) -> str:
    """Returns the toolchain's class as "module:Class"; empty if there is none for the device."""
    return spec.toolchain or TOOLCHAINS.get(DEVICES.get(spec.target.device, ""), "")


def _import(import_path: str, spec: OpSpec) -> Any:
    """Returns the object that "module:name" names. Raises BuilderError if it cannot be imported."""
    import importlib

    module, _, attribute = import_path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        from opforge.errors import BuilderError

        advice = "Expected module:Class, of a subclass of opforge.builders.toolchains.toolchain.Toolchain"
        raise BuilderError(spec.builder, f"toolchain={import_path!r} cannot be imported ({error})", advice) from error
