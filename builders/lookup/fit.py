"""Whether a prebuilt entry can be used for a spec on a machine: a function of its record and the machine's value."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from opforge.builders.declaration import abi, attributes
from opforge.builders.declaration.machine import NATIVE_FLAGS, PROCESSOR, Machine, native_processor
from opforge.builders.declaration.op_spec import OpSpec, root_paths
from opforge.builders.declaration.targets import device_problems, level_problem, lower_targets, torch_library_problem
from opforge.builders.toolchains import read_variables
from opforge.cache.layout import Layout, entry_name
from opforge.cache.records.entry import BY_VARIABLES
from opforge.cache.store import Fit
from opforge.fast_path.library import Entry
from opforge.foundation import settings
from opforge.foundation.environment import HEADER_VARIABLES
from opforge.foundation.versions import version_of

from .device_requirements import device_problem

log = logging.getLogger("opforge")
_warned: set[str] = set()


def reset() -> None:
    """Forgets which entries were warned about."""
    _warned.clear()


def fit_of(spec: OpSpec, exact: bool, machine: Machine) -> Callable[[Mapping[str, Any]], Fit]:
    """Returns the function that judges records for this process, which runs on the machine.

    If the spec's target does not run on the machine, the entry is for another one. It is fetched or shipped and not
    loaded here, so what this machine has is no reason to refuse it.
    """
    is_for_another = is_of_another_machine(spec, machine)

    def judge(record: Mapping[str, Any]) -> Fit:
        where = _machine_of(spec, record, machine) if is_for_another else machine
        result = fit(record, where, spec, exact)
        problem = result.problem or missing_function(record, where) or flags_problem(spec.name, record)
        built_on = record["requires"].get(PROCESSOR)
        if built_on and not (problem or is_for_another) and built_on != native_processor(NATIVE_FLAGS):
            problem = "it was built with -march=native, or a flag like it, on another processor"
        return Fit(problem) if problem else result

    return judge


def fit_of_prebuilt(spec: OpSpec, fits: Callable[[Mapping[str, Any]], Fit]) -> Callable[[Mapping[str, Any]], Fit]:
    """Returns the function that judges entries built elsewhere. `fits` is the judgement by its record alone."""

    def judge(record: Mapping[str, Any]) -> Fit:
        result = fits(record)
        problem = result.problem or headers_problem(spec, record)
        return Fit(problem) if problem else result

    return judge


def fit_without_plan(spec: OpSpec, layout: Layout, fits: Callable[[Mapping[str, Any]], Fit]) -> Callable[..., Fit]:
    """Returns the function that judges entries built in this store for a process that makes no plan.

    There is no compiler, or nothing can be remembered. A compiler would read today's variables and flags: an entry fits
    if they are those that it was built with. `fits` is the judgement by its record alone.
    """

    def judge(record: Mapping[str, Any]) -> Fit:
        problem = _variables_problem(spec, record, layout)
        return Fit(problem) if problem else fits(record)

    return judge


def _variables_problem(spec: OpSpec, record: Mapping[str, Any], layout: Layout) -> str | None:
    """Returns why the variables of today refuse an entry, or None if they are those that it was built with."""
    name = entry_name(record["key"], record["sha256"])
    try:
        recorded = Entry(name, layout.entry(name), {}, "").build()["components"]["environment"]
        there = {str(variable): str(text) for variable, text in recorded.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        there = {}  # it was not built here, and is like one of a layer
    here = {variable: os.environ.get(variable, "") for variable in (*read_variables(spec), *there)}
    if not settings.prebuilt.is_set():  # otherwise `flags_problem` warns
        here |= {variable: settings.user_flags().get(variable, "") for variable in settings.USER_FLAGS}
        there |= record["user_flags"]
    for variable, text in here.items():
        if text != there.get(variable, ""):
            built = f"{variable}={there[variable]!r}" if there.get(variable) else f"no {variable}"
            now = f"{variable}={text!r} is set here" if text else "it is not set here"
            return f"it was built with {built}, and {now}"
    return None


def is_of_another_machine(spec: OpSpec, machine: Machine) -> bool:
    """Returns whether code for the spec's target does not run on the machine."""
    if spec.target.device == "cpu":
        return level_problem(spec.target.arch, machine.level, machine.processor) is not None
    return bool(device_problems(spec.target, spec.abi, machine))


def _machine_of(spec: OpSpec, record: Mapping[str, Any], machine: Machine) -> Machine:
    """Returns a machine that runs the spec's target. Of it are known the target, and that its torch is for it."""
    unknown = machine._replace(glibc="", libstdcxx="", devices=(), driver=None)
    if spec.target.device == "cpu":
        return unknown._replace(level=spec.target.arch[0])
    return unknown._replace(torch_libraries=frozenset(record["needs"]))


def fit(record: Mapping[str, Any], machine: Machine, spec: OpSpec, exact: bool = False) -> Fit:
    """Returns whether an entry with this record can be used for the spec on the machine.

    `exact` refuses another CPU level or architecture than the target's.
    """
    problem = entry_problem(record, machine)
    if not problem and spec.portable and not record.get("portable"):
        problem = "it is not portable"
    if problem:
        return Fit(problem)
    if exact and record["target"] != str(spec.target):
        return Fit(f"it is built for {record['target']}, not for {spec.target}")
    return _cpu_fit(record, spec) if spec.target.device == "cpu" else _device_fit(record, machine, spec)


def _cpu_fit(record: Mapping[str, Any], spec: OpSpec) -> Fit:
    """Fits if it is built for the target or for a level below it; the highest level is the best."""
    targets = [*map(str, lower_targets(spec.target))]
    if record["target"] not in targets:
        return Fit(f"it is built for {record['target']}, not for {spec.target}")
    return Fit(rank=-targets.index(record["target"]))


def _device_fit(record: Mapping[str, Any], machine: Machine, spec: OpSpec) -> Fit:
    """Fits if its code runs on the devices here; the best is one that the driver need not compile any further."""
    if problem := device_problem(record, spec.target.arch, machine):
        return Fit(problem)
    return Fit(rank=int(device_problem(record, spec.target.arch, machine, jit=False) is None))


def entry_problem(record: Mapping[str, Any], machine: Machine) -> str | None:
    """Returns why an entry with this record cannot be loaded on the machine, or None."""
    return host_problem(record, machine) or abi.interface_problem(record, abi.LOADED_INTERFACES)


def host_problem(record: Mapping[str, Any], machine: Machine) -> str | None:
    """Returns why a library cannot be loaded on the machine, from its record and before dlopen; None if it can be.

    Its device code is checked by `device_problem`.
    """
    device, _, arch = str(record["target"]).partition(":")
    if device == "cpu" and arch:
        problem = level_problem(arch.split("+"), machine.level, machine.processor)
        if problem:
            return problem
    elif record["machine"] != machine.processor:
        return f"its host code is for {record['machine']}, and this machine is {machine.processor}"
    floors = record["floors"]
    if machine.glibc and version_of(floors.get("GLIBC", "0")) > version_of(machine.glibc):
        return f"it needs glibc {floors['GLIBC']}, and this system has {machine.glibc}"
    if machine.libstdcxx and version_of(floors.get("GLIBCXX", "0")) > version_of(machine.libstdcxx):
        return f"it needs GLIBCXX_{floors['GLIBCXX']}, and this libstdc++ has up to {machine.libstdcxx}"
    if problem := attributes.unmet(record["requires"], machine):
        return problem
    return _torch_problem(record, machine) if record["abi"] != abi.PLAIN else None


def _torch_problem(record: Mapping[str, Any], machine: Machine) -> str | None:
    here = machine.torch
    if here is None:
        return "it needs torch, and torch is not installed"
    if not here:
        return "it needs torch, and the installed torch does not state its version"
    if not record["target"].startswith("cpu") and (problem := torch_library_problem(record["needs"], machine)):
        return problem
    if record["abi"] in abi.ON_STABLE:
        if version_of(here)[:2] < version_of(record["torch_target"]):
            return f"it needs torch {record['torch_target']} or newer, and torch {here} is installed"
        return None
    torch, python = (record["requires"].get(name) for name in ("torch", "python"))
    if torch != here:
        stated = (
            "it does not state the torch that it was built for" if torch is None else f"it was built for torch {torch}"
        )
        return f"{stated}, and torch {here} is installed"
    if python != machine.python:
        stated = (
            "it does not state the Python that it was built for" if python is None else f"it was built for {python}"
        )
        return f"{stated}, and this is {machine.python}"
    return None


def missing_function(record: Mapping[str, Any], machine: Machine) -> str | None:
    """Returns why this process's torch lacks a function of its C interface that the library calls, or None.

    A newer torch has every function that an older one has. Looking them up takes longer than loading the op.
    """
    built_with = version_of(str(record.get("built_with_torch") or "9999"))
    if (
        record["abi"] not in abi.ON_STABLE
        or "torch" not in sys.modules
        or version_of(machine.torch or "") >= built_with
    ):
        return None
    import ctypes

    names = [name for name in record["needs"] if name.startswith("libtorch_")]
    try:
        loaded = [ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY) for name in names]
    except OSError:
        return None  # under another name, which dlopen may know how to resolve
    missing = [shim for shim in record.get("shims", ()) if not any(hasattr(library, shim) for library in loaded)]
    return f"it calls torch's {missing[0]}, which torch {machine.torch} does not have" if missing else None


OF_TOOLKITS = (
    *("features.h", "sys/cdefs.h", "stddef.h", "cstddef", "Python.h"),
    *("torch/library.h", "cuda_runtime.h", "hip/hip_runtime.h", "sycl/sycl.hpp"),
)
"""Headers by which a folder of the C library, a compiler, Python, torch or a device's toolkit is known. What an entry
needs of those is in its record, and their headers differ between machines."""
OF_LINKS = re.compile(r".*\.(?:a|o|so(?:\.\d+)*)")
"""The names of what a linker reads."""


def headers_problem(spec: OpSpec, record: Mapping[str, Any]) -> str | None:
    """Returns why the folders of headers that variables name refuse an entry, or None.

    A build here would find a header there that the entry's build has found elsewhere, or has not found. If the build
    itself found headers by a variable, the variable must be the same here, and then so must the headers, which the
    look-up compares. An entry is used where the variable is not set: such a machine need not have the headers.
    """
    by_variables = record.get(BY_VARIABLES, {"variables": {}})["variables"]
    for variable in HEADER_VARIABLES:
        here, there = os.environ.get(variable, ""), by_variables.get(variable, "")
        if here and there and here != there:
            problem = f"it was built with {variable}={there!r}, and {variable}={here!r} is set here"
            return f"{problem}: unset {variable}, or set it to that value"
        for folder in () if there else filter(os.path.isabs, os.environ.get(variable, "").split(os.pathsep)):
            if name := _header_in(folder, spec, record["inputs"]):
                return f"{variable} names {folder}, in which a build would find {name}: unset {variable}"
    return None


def _header_in(folder: str, spec: OpSpec, inputs: Mapping[str, Any]) -> str | None:
    """Returns the first header in a folder that the build with these inputs has not found there; None if none."""
    # A name that ends with a slash stands for all that would be below it: which one a source asks for is not known.
    names = [name for name in inputs["names"] if not name.endswith("/") and not OF_LINKS.fullmatch(name)]
    names = [name for name in names if os.path.isfile(os.path.join(folder, name))]
    if not names or is_of_toolkit(folder):
        return None
    roots = root_paths(spec)
    read = [
        os.path.join(roots[root], path) for root, path, *_ in (*inputs["files"], *inputs["present"]) if root in roots
    ]
    found = {os.path.realpath(path) for path in read}
    return next((name for name in names if os.path.realpath(os.path.join(folder, name)) not in found), None)


def is_of_toolkit(folder: str) -> bool:
    """Returns whether a folder is one of the C library, a compiler, Python, torch or a device's toolkit."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in OF_TOOLKITS)


def flags_problem(op: str, record: Mapping[str, Any]) -> str | None:
    """Returns why the user's flags refuse an entry, or None.

    If no flags are set, the entry is used whatever flags its maker had. If OPFORGE_PREBUILT says "prefer" or "require",
    an entry with other flags is used too, and one warning says so.
    """
    here, there = settings.user_flags(), record["user_flags"]
    names = [name for name in here if here[name] != there.get(name, "")]
    if not names:
        return None
    name = names[0]
    built = f"{name}={there[name]!r}" if name in there else f"no {name}"
    problem = f"it was built with {built}, and {name}={here[name]!r} is set here"
    if not settings.prebuilt.is_set():
        return f"{problem}: unset {name}, or set OPFORGE_PREBUILT=prefer to use it nevertheless"
    if op not in _warned:
        _warned.add(op)
        log.warning("%s: a prebuilt entry is used although %s (OPFORGE_PREBUILT=%s)", op, problem, settings.prebuilt())
    return None
