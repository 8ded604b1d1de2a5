"""The devices that ops are built for and loaded on: which architectures are here, and which code runs on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.accelerator.vendors.nvidia import driver_version
from opforge.builders.spec.abi import PLAIN
from opforge.errors import OpforgeError, SettingError

from .host_requirements import torch_lacks

if TYPE_CHECKING:
    from opforge.accelerator.interface.accelerator import Accelerator

TORCH_LIBRARY = {"cuda": "libtorch_cuda.so", "hip": "libtorch_hip.so", "xpu": "libtorch_xpu.so"}
"""The library of torch that an op for the device needs: the current stream is its to tell."""
DEFAULTS = {"cuda": ("sm_80", "sm_90", "ptx")}
"""Built for where nothing else is known: every CUDA compiler since 11.8 can, and all newer devices run the PTX."""
NEEDS_ARCH = ("hip",)
"""The devices whose code runs on nothing but what it was compiled for."""


def present(device: str) -> tuple[str, ...]:
    """The architectures of the devices of this kind that this process can use; none where there is no such device."""
    from opforge.accelerator.registry import accelerator_named
    from opforge.accelerator.select import get_accelerator

    known: list[Callable[[], Accelerator]] = [get_accelerator, partial(accelerator_named, device)]
    for make in known:
        try:
            one = make()
            if one.is_available() and one.target().device == device:
                return tuple(arch for arch in one.target().arch if arch != "native")
        except OpforgeError:
            continue  # it is not known here, or the one in use cannot be had
    return ()


def concrete(asked: Target) -> Target:
    """A device target with its architectures: those asked for, torch's variable's, this machine's, or the default.

    `native` becomes those of the devices here. Raises SettingError where nothing tells.
    """
    device = asked.device
    arch = asked.arch or archs.from_environment(device)
    variable = archs.VARIABLES.get(device, "")
    if "native" in arch:
        here = present(device)
        if not here:
            named = f"--target {device}:ARCH" + (f" or {variable}" if variable else "")
            raise SettingError(
                "target", f"{device}:{'+'.join(arch)}", f"a {device} device here, or its name by {named}"
            )
        arch = (*here, *(one for one in arch if one != "native"))
    if not arch:
        arch = present(device) or DEFAULTS.get(device, ())
    if not arch and device in NEEDS_ARCH:
        raise SettingError("target", device, f"its architecture, such as {device}:gfx942, by --target or {variable}")
    return Target(device, archs.canonical(device, arch))


def cannot_load(target: Target, abi: str) -> list[str]:
    """Why code for this target cannot be loaded, or does not run, here. Without a device of its kind it cannot run,
    but a torch that knows the device loads it, so that is none."""
    reasons = []
    library = TORCH_LIBRARY.get(target.device)
    if abi != PLAIN and library and (lacks := torch_lacks([library])):
        reasons.append(f"{lacks}; build-ops --target {target} builds it for where it does")
    missing = [one for one in present(target.device) if not archs.run_mode(target.device, one, target.arch)]
    if missing:
        reasons.append(f"the {target.device} device here is {'+'.join(missing)}, which does not run code for {target}")
    return reasons


def objection(binary: Mapping[str, Any], wanted: Sequence[str], jit: bool) -> str | None:
    """See `requirements.device_objection`."""
    device, _, text = str(binary["target"]).partition(":")
    arch = Target.parse(f"{device}:{text}").arch if text else ()
    here = present(device)
    how = {one: archs.run_mode(device, one, arch) for one in here or wanted if one != "ptx"}
    missing = [one for one, answer in how.items() if not answer]
    if missing:
        whose = f"the {device} device here is" if here else "wanted is"
        return f"it holds code for {'+'.join(arch)}, and {whose} {'+'.join(missing)}"
    compiled = "ptx" in how.values()
    if compiled and not jit:
        return f"it holds PTX alone for {'+'.join(how)}, which the driver would compile at the first launch"
    return _driver_objection(binary, compiled) if device == "cuda" and here else None


def _driver_objection(binary: Mapping[str, Any], compiled: bool) -> str | None:
    """Why the driver is too old: within a major release every minor one will do, except to compile PTX."""
    built, driver = binary["requires"].get("cuda", ""), driver_version()
    if not built or driver is None:
        return None
    needed = tuple(int(part) for part in built.split(".")[:2])
    offers = ".".join(map(str, driver))
    if driver[0] < needed[0]:
        return f"it was built with CUDA {built}, and the driver here serves CUDA up to {offers}: update the driver"
    if compiled and driver < needed:
        return f"it holds PTX of CUDA {built} for this device, and the driver here compiles that of {offers} and before"
    return None
