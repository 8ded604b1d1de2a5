"""Targets: which architectures are here, which are the defaults of a target, which CPU levels run on which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from opforge.accelerator.host.cpuid import cpu_level
from opforge.accelerator.target import Target
from opforge.errors import OpforgeError, SettingError

from .abi import PLAIN

if TYPE_CHECKING:
    from opforge.accelerator.interface.accelerator import Accelerator

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
DEFAULTS = {"cuda": ("sm_80", "sm_90", "ptx")}
"""Used if nothing names an architecture: every CUDA compiler since 11.8 builds it, and newer devices run the PTX."""
NEEDS_ARCH = ("hip",)
"""The devices whose code runs only on the architecture that it was compiled for."""
TORCH_LIBRARY = {"cuda": "libtorch_cuda.so", "hip": "libtorch_hip.so", "xpu": "libtorch_xpu.so"}
"""The library of torch that an op for the device needs: it knows the current stream."""


def concrete(target: Target) -> Target:
    """Returns the target with its architectures: those it names, the environment's, this machine's, or the default.

    `native` becomes those of the devices here. Raises SettingError if nothing names an architecture and one is needed.
    """
    if target.device == "cpu":
        if target.arch and target.arch != ("native",):
            return target
        level = cpu_level()
        return Target("cpu", (level,) if level else ())
    from opforge.accelerator import archs

    device = target.device
    arch = target.arch or archs.from_environment(device)
    variable = archs.VARIABLES.get(device, "")
    if "native" in arch:
        here = present(device)
        if not here:
            option = f"--target {device}:ARCH" + (f" or {variable}" if variable else "")
            raise SettingError(
                "target", f"{device}:{'+'.join(arch)}", f"a {device} device here, or its name by {option}"
            )
        arch = (*here, *(name for name in arch if name != "native"))
    if not arch:
        arch = present(device) or DEFAULTS.get(device, ())
    if not arch and device in NEEDS_ARCH:
        raise SettingError("target", device, f"its architecture, such as {device}:gfx942, by --target or {variable}")
    return Target(device, archs.canonical(device, arch))


def present(device: str) -> tuple[str, ...]:
    """Returns the architectures of the devices of this kind that this process can use; empty if there are none."""
    from opforge.accelerator.registry import accelerator_named
    from opforge.accelerator.select import get_accelerator

    getters: list[Callable[[], Accelerator]] = [get_accelerator, partial(accelerator_named, device)]
    for get in getters:
        try:
            accelerator = get()
            if accelerator.is_available() and accelerator.target().device == device:
                return tuple(arch for arch in accelerator.target().arch if arch != "native")
        except OpforgeError:
            continue  # the accelerator is unknown here, or the one in use is unavailable
    return ()


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
    return Target(devices[0])


def lower_targets(target: Target) -> list[Target]:
    """Returns the target and, for a CPU level, those below it: their code runs here too."""
    if target.device != "cpu" or len(target.arch) != 1 or target.arch[0] not in LEVELS:
        return [target]
    reached = LEVELS[: LEVELS.index(target.arch[0]) + 1]
    return [Target("cpu", (level,)) for level in reversed(reached)]


def other_levels(target: Target, others: Sequence[Target]) -> list[Target]:
    """Returns the targets of the same processor's other levels, except those in `others`."""
    if target.device != "cpu" or len(target.arch) != 1 or target.arch[0] not in LEVELS:
        return []
    return [level for level in (Target("cpu", (name,)) for name in LEVELS) if level not in others]


def cpu_problem(arch: Sequence[str]) -> str | None:
    """Returns why code for these CPU levels cannot run here, or None."""
    level = cpu_level()
    runs = LEVELS[: LEVELS.index(level) + 1] if level in LEVELS else (level,)
    missing = [name for name in arch if name not in runs]
    if missing:
        from opforge.accelerator.host.cpuinfo import read_cpuinfo

        offers = level or read_cpuinfo().machine or "no known level"
        return f"it is built for {'+'.join(missing)}, and this processor offers {offers}"
    return None


def load_problems(target: Target, devices: Sequence[str], abi: str) -> list[str]:
    """Returns why code for this target does not run, or cannot be loaded, on this machine.

    Without a device of its kind the code cannot run, but a torch that knows the device loads it: that is no problem.
    """
    device = target.device
    if device not in devices:
        return [f"it is an op for {', '.join(devices)}, not for {device}"]
    if device == "cpu":
        problem = cpu_problem(target.arch)
        return [problem] if problem else []
    from opforge.accelerator import archs

    from .installed_torch import missing_library_problem

    problems = []
    library = TORCH_LIBRARY.get(device)
    if abi != PLAIN and library and (problem := missing_library_problem([library])):
        problems.append(f"{problem}; to build it for another machine: build-ops --target {target}")
    missing = [arch for arch in present(device) if not archs.run_mode(device, arch, target.arch)]
    if missing:
        problems.append(f"the {device} device here is {'+'.join(missing)}, which does not run code for {target}")
    return problems
