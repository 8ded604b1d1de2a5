"""One file for each compiler: a toolchain finds it, identifies it, and turns a plan into commands.

The variables of compilers that count are those of `foundation/environment.py`, and a toolchain's own in `plan_env`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opforge.errors import BuilderError, OpIncompatibleError
from opforge.fast_path import lookup
from opforge.foundation import environment, settings

if TYPE_CHECKING:
    from opforge.builders.declaration.op_spec import OpSpec
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
_BUILDERS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOST_CODE = tuple(
    os.path.join(_BUILDERS, *name.split("/"))
    for name in (
        "planner.py",
        "declaration/abi.py",
        "declaration/build_plan.py",
        "declaration/flag_paths.py",
        "declaration/kernel_roots.py",
        "declaration/op_spec.py",
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
    import_path = _import_path(spec)
    if not import_path:
        reason = f"opforge has no toolchain for {spec.target.device}; it has one for {', '.join(DEVICES)}"
        advice = "Name one in the builder's `toolchain`, as module:Class; or remove `devices` if all is for the host"
        raise OpIncompatibleError(spec.name, str(spec.target), [f"{reason}. {advice}"])
    find = _import(FIND_FOR_CPU, spec) if import_path == HOST else _import(import_path, spec).find
    toolchain: Toolchain = find(spec, store.layout, store.disk)
    toolchain.identity()
    if problem := toolchain.target_problem(spec.target.device, spec.target.arch):
        raise OpIncompatibleError(spec.name, str(spec.target), [problem])
    return toolchain


def plan_variables(spec: OpSpec) -> list[tuple[bytes, bytes]]:
    """Returns the variables that the spec's plan may depend on and that are set, with their values, sorted by name."""
    import_path = _import_path(spec)
    return lookup.variables(() if import_path in ("", HOST) else _import(import_path, spec).plan_env)


def read_variables(spec: OpSpec) -> tuple[str, ...]:
    """Returns the names of the variables that a spec's compilers read: search paths, flags, and the user's list."""
    import_path = _import_path(spec)
    own = () if import_path in ("", HOST) else getattr(_import(import_path, spec), "passed_env", ())
    return (*environment.COMPILER_VARIABLES, *own, *settings.compiler_env())


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
        advice = "Expected module:Class, of a subclass of opforge.builders.toolchains.toolchain.Toolchain"
        raise BuilderError(spec.builder, f"toolchain={import_path!r} cannot be imported ({error})", advice) from error
