"""Targets: their default architectures, which CPU levels run on which, and which code runs on a machine."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from opforge.accelerator.target import Target
from opforge.errors import BuilderError, OpforgeError, SettingError

from . import machine
from .abi import FACADE, PLAIN
from .machine import Machine

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
DEFAULTS = {"cuda": ("sm_80", "sm_90", "ptx")}
"""Used if nothing names an architecture: every CUDA compiler since 11.8 builds it, and newer devices run the PTX."""
NEEDS_ARCH = ("hip",)
"""The devices whose code runs only on the architecture that it was compiled for."""
TORCH_LIBRARY = {"cuda": "libtorch_cuda.so", "hip": "libtorch_hip.so", "xpu": "libtorch_xpu.so"}
"""The library of torch that an op for the device needs: it knows the current stream."""


def of_declaration(declared: Any, requested: Target | str | None) -> Target:
    """Returns the concrete target of an op's declaration: the requested one, or the default for its devices.

    Architectures that the op declares replace the target's. Raises BuilderError, SettingError.
    """
    devices: object = declared.devices
    if type(devices) not in (tuple, list) or not all(isinstance(device, str) for device in declared.devices):
        _check_devices(type(declared).__name__, devices)
    if not devices:
        raise BuilderError(type(declared).__name__, f"devices={devices!r}", 'Name at least one, such as ["cpu"]')
    requested = Target.parse(requested) if isinstance(requested, str) else requested
    target = requested or default_target(declared.devices)
    if declared.architectures or declared.groups:
        from .groups import requested_target

        target = requested_target(declared, target)
    return concrete(target)


def _check_devices(builder: str, devices: object) -> None:
    """Raises BuilderError for anything but a collection of devices: the letters of a text would be taken for some."""
    if isinstance(devices, str):
        raise BuilderError(builder, f"devices={devices!r}", f'Write devices = ["{devices}"]')
    if not isinstance(devices, Collection) or not all(isinstance(device, str) for device in devices):
        raise BuilderError(builder, f"devices={devices!r}", 'Expected a list of devices, such as ["cpu"]')


def concrete(target: Target) -> Target:
    """Returns the target with its architectures: those it names, the environment's, this machine's, or the default.

    `native` becomes those of the devices here. Raises SettingError if nothing names an architecture and one is needed.
    """
    if target.device == "cpu":
        if target.arch and target.arch != ("native",):
            return target
        level = machine.cpu_level()
        return Target("cpu", (level,) if level else ())
    from opforge.accelerator import archs

    device = target.device
    arch = target.arch or archs.from_environment(device)
    variable = archs.VARIABLES.get(device, "")
    if "native" in arch:
        here = machine.present(device)
        if not here:
            option = f"--target {device}:ARCH" + (f" or {variable}" if variable else "")
            raise SettingError(
                "target", f"{device}:{'+'.join(arch)}", f"a {device} device here, or its name by {option}"
            )
        arch = (*here, *(name for name in arch if name != "native"))
    if not arch:
        arch = machine.present(device) or DEFAULTS.get(device, ())
    if not arch and device in NEEDS_ARCH:
        raise SettingError("target", device, f"its architecture, such as {device}:gfx942, by --target or {variable}")
    return Target(device, archs.canonical(device, arch))


def default_target(devices: Sequence[str]) -> Target:
    """Returns the target of an op that names none: the host, or the device of the accelerator in use.

    An op that supports neither gets the first of its devices.
    """
    if "cpu" in devices:
        return Target("cpu")
    if len(devices) > 1:
        from opforge.accelerator.select import get_accelerator

        try:
            target = get_accelerator().target()
            if target.device in devices:
                return target
        except OpforgeError:
            pass  # without an accelerator, code can still be built for one
    return Target(next(iter(devices)))


def lower_targets(target: Target) -> list[Target]:
    """Returns the target and, for a CPU level, those below it: their code runs here too."""
    if target.device != "cpu" or len(target.arch) != 1 or target.arch[0] not in LEVELS:
        return [target]
    reached = LEVELS[: LEVELS.index(target.arch[0]) + 1]
    return [Target("cpu", (level,)) for level in reversed(reached)]


def level_problem(arch: Sequence[str], level: str, processor: str = "") -> str | None:
    """Returns why code for these CPU levels cannot run on a processor of this level and kind, or None."""
    runs = LEVELS[: LEVELS.index(level) + 1] if level in LEVELS else (level,)
    if missing := [name for name in arch if name not in runs]:
        here = level or processor or os.uname().machine
        return f"it is built for {'+'.join(missing)}, and this processor offers {here}"
    return None


def load_problems(
    target: Target, devices: Sequence[str], abi: str, required: Mapping[str, str] | None = None
) -> list[str]:
    """Returns why code for this target does not run, or cannot be loaded, on this machine.

    `required` is what the op's attributes require. Without a device of its kind the code cannot run, but a torch that
    knows the device loads it: that is no problem.
    """
    device, problems = target.device, list[str]()
    if device not in devices:
        return [f"it is an op for {', '.join(devices)}, not for {device}"]
    if required:
        from .attributes import unmet

        problems += filter(None, [unmet(required)])
    if device == "cpu":
        return [*problems, *filter(None, [level_problem(target.arch, machine.cpu_level())])]
    return [*problems, *device_problems(target, abi, machine.this_machine(device))]


def device_problems(target: Target, abi: str, here: Machine) -> list[str]:
    """Returns why code for this target of a device does not run, or cannot be loaded, on this machine."""
    from opforge.accelerator import archs

    problems = []
    library = TORCH_LIBRARY.get(target.device)
    if abi not in (PLAIN, FACADE) and library and (problem := torch_library_problem([library], here)):
        problems.append(f"{problem}; to build it for another machine: build-ops --target {target}")
    if missing := [arch for arch in here.devices if not archs.run_mode(target.device, arch, target.arch)]:
        names = "+".join(missing)
        problems.append(f"the {target.device} device here is {names}, which does not run code for {target}")
    return problems


def torch_library_problem(libraries: Sequence[str], here: Machine) -> str | None:
    """Returns why the machine's torch cannot serve a library that needs these of torch's libraries, or None."""
    for name in libraries:
        if here.torch and name.startswith(("libtorch_", "libc10_")) and name not in here.torch_libraries:
            return f"it needs torch's {name}, which the installed torch {here.torch} does not have"
    return None
