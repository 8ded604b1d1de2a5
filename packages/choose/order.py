"""Judges variants for a machine, and puts those that fit in one order.

The order, the first difference decides:

1. code for this very device, for its family, as PTX; then Python alone, and code that names no architecture;
   then a CPU variant where torch has a device; then sources, which are built here;
2. the higher CPU level;
3. the stable ABI, this very torch, tvm-ffi, no library;
4. the newer framework, as far as it fits;
5. the newer version of the backend;
6. a backend's own before one for all;
7. the label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opforge.builders.declaration.machine import Machine
from opforge.builders.declaration.targets import LEVELS
from opforge.builders.lookup import fit
from opforge.foundation.versions import version_of
from opforge.packages.form.properties import FRAMEWORKS, PYTHON, SOURCE, TORCH, TVM, WITHOUT_LIBRARY, Properties

from .candidate import VariantCandidate
from .environment import DEVICES, TOOLKITS, Environment, of_each_device

EXACT, FAMILY, COMPILED, UNNAMED, HOST, BUILT_HERE = range(6)
Key = tuple[int, int, int, tuple[int, ...], tuple[int, ...], bool, str]


class Decision(NamedTuple):
    """Whether a variant fits, and its place among those that do."""

    candidate: VariantCandidate
    problem: str
    """Why not; empty if it fits."""
    key: Key | None
    """The lowest is the best; None if it does not fit."""


def decide(candidates: Iterable[VariantCandidate], here: Environment) -> list[Decision]:
    """Returns a decision for each variant: those that fit first, the best one first of all."""
    decisions = []
    for candidate in candidates:
        problem = unfit(candidate, here)
        decisions.append(Decision(candidate, problem, None if problem else _key(candidate, here)))
    return sorted(decisions, key=lambda choice: (choice.key is None, choice.key or (), choice.candidate.label))


def best(candidates: Sequence[VariantCandidate], here: Environment) -> list[VariantCandidate]:
    """Returns the variant that fits best; several where devices of different architectures need them. Empty if none."""
    chosen: list[VariantCandidate] = []
    for environment in of_each_device(here):
        for choice in decide(candidates, environment)[:1]:
            if not choice.problem and choice.candidate not in chosen:
                chosen.append(choice.candidate)
    return chosen


def unfit(candidate: VariantCandidate, here: Environment) -> str:
    """Returns why a variant cannot be used on the machine, or an empty text."""
    properties = candidate.properties
    problem = candidate.problem or _place_problem(candidate, here) or _backend_problem(candidate, here)
    if problem or candidate.record is None:
        return problem
    device = DEVICES.get(properties.backend, "cpu")
    machine = here.machines.get(device) or here.host._replace(device=device)
    judge = fit.entry_problem if candidate.own else fit.host_problem
    problem = judge(candidate.record, machine) or ""
    if not problem and device != "cpu":
        problem = _device_problem(candidate, machine)
    return problem or fit.missing_function(candidate.record, machine) or ""


def _device_problem(candidate: VariantCandidate, machine: Machine) -> str:
    record, version = candidate.record, candidate.properties.backend_version
    assert record is not None
    _device, _, arch = str(record["target"]).partition(":")
    if not arch:
        return ""  # nothing is stated of its architectures
    from opforge.builders.lookup import device_requirements  # not for what has no code for a device

    if version and _needs_driver_alone(candidate):  # for a driver of CUDA it is that of the assembler
        record = {**record, "requires": {**record["requires"], "cuda": ".".join(map(str, version))}}
    return device_requirements.device_problem(record, tuple(arch.split("+")), machine) or ""


def _needs_driver_alone(candidate: VariantCandidate) -> bool:
    """Returns whether a library uses no toolkit, as a Triton op's: the label has a version all the same."""
    record = candidate.record
    return candidate.own and record is not None and record["requires"].keys().isdisjoint(TOOLKITS.values())


def _place_problem(candidate: VariantCandidate, here: Environment) -> str:
    """Returns why the system, the processor, Python or the framework refuses the variant, or an empty text."""
    properties = candidate.properties
    if properties.system and properties.system != here.system:
        return f"it is for {properties.system}, and this system is {here.system}"
    if properties.processor and properties.processor != here.host.processor:
        return f"it is for {properties.processor}, and this machine is {here.host.processor}"
    if properties.framework not in WITHOUT_LIBRARY and here.free_threaded and not candidate.own:
        return "this Python is free-threaded, and its library may use the stable ABI of one that is not"
    if properties.framework == TVM:
        return _tvm_problem(properties, here)
    if here.host.torch is None:
        return "it needs torch, and torch is not installed"
    if properties.framework == TORCH and not candidate.own:
        # The hub's rule: a library on torch's own ABI serves the releases of one minor version.
        wanted_version = properties.framework_version or ()
        if version_of(here.host.torch)[:2] != wanted_version:
            text = ".".join(map(str, wanted_version))
            return f"it is for torch {text} alone, and torch {here.host.torch} is installed"
        if properties.cxx == "cxx98":
            return "it is for the old C++ interface of strings, which torch no longer has"
    return ""


def _tvm_problem(properties: Properties, here: Environment) -> str:
    text = ".".join(map(str, properties.framework_version or ()))
    if not here.tvm_ffi:
        return f"it needs tvm-ffi {text}, which is not installed"
    if version_of(here.tvm_ffi)[:2] != properties.framework_version:
        return f"it needs tvm-ffi {text}, and {here.tvm_ffi} is installed"
    return ""


def _backend_problem(candidate: VariantCandidate, here: Environment) -> str:
    backend, version = candidate.properties.backend, candidate.properties.backend_version
    if backend in ("cpu", "universal"):
        return ""
    if backend != here.backend:
        return f"it is for {backend}, and the installed torch is for {here.backend}"
    if version is None or here.backend_version is None or _needs_driver_alone(candidate):
        return ""
    theirs, ours = ".".join(map(str, version)), ".".join(map(str, here.backend_version))
    fits = version[0] == here.backend_version[0] and version <= here.backend_version
    if backend == "cuda" and not fits:
        return f"it is built with CUDA {theirs}, and the installed torch with CUDA {ours}"
    if backend != "cuda" and version != here.backend_version:
        return f"it is built with {backend} {theirs}, and the installed torch with {ours}"
    return ""


def _key(candidate: VariantCandidate, here: Environment) -> Key:
    properties = candidate.properties
    return (
        _code(candidate, here),
        -_level(candidate),
        FRAMEWORKS.index(properties.framework),
        tuple(-number for number in properties.framework_version or ()),
        tuple(-number for number in properties.backend_version or ()),
        properties.backend == "universal",
        candidate.label,
    )


def _code(candidate: VariantCandidate, here: Environment) -> int:
    properties = candidate.properties
    if properties.framework == SOURCE:
        return BUILT_HERE
    if properties.backend == "cpu":
        has_library = properties.framework != PYTHON
        return HOST if here.backend != "cpu" else (EXACT if has_library else UNNAMED)
    device = DEVICES.get(properties.backend, properties.backend)
    machine = here.machines.get(device)
    _device, _, text = str((candidate.record or {}).get("target", "")).partition(":")
    if not text or machine is None or not machine.devices:
        return UNNAMED
    from opforge.accelerator import archs

    arch = tuple(text.split("+"))
    modes = [archs.run_mode(device, name, arch) for name in machine.devices]
    if "ptx" in modes:
        return COMPILED
    return EXACT if all(_is_exact(name, arch) for name in machine.devices) else FAMILY


def _is_exact(device_arch: str, arch: tuple[str, ...]) -> bool:
    base = device_arch.split(":")[0]
    return any(word.split(":")[0] in (base, f"{base}a") for word in arch)


def _level(candidate: VariantCandidate) -> int:
    """Returns how high the CPU level of a variant is; 0 for the base."""
    names = {*candidate.properties.arch, *str((candidate.record or {}).get("target", "")).partition(":")[2].split("+")}
    return max((LEVELS.index(name) for name in names if name in LEVELS), default=0)
