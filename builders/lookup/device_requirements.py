"""Whether the device code of a library runs on a machine's devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.foundation.versions import version_of

if TYPE_CHECKING:
    from opforge.builders.declaration.machine import Machine


def device_problem(
    record: Mapping[str, Any], requested: Sequence[str], machine: Machine, jit: bool = True
) -> str | None:
    """Returns why the library's device code does not run on the machine's devices or, without any, on `requested`.

    The machine was read for the kind of device that the code is for.

    Without `jit`, that the driver would have to compile it first counts as a problem. None if there is none.
    """
    target, here = Target.parse(record["target"]), machine.devices
    device, arch = target.device, target.arch
    how = {name: archs.run_mode(device, name, arch) for name in here or requested if name != "ptx"}
    if missing := [name for name, kind in how.items() if not kind]:
        whose = f"the {device} device here is" if here else "the target is"
        return f"it holds code for {'+'.join(arch)}, but {whose} {'+'.join(missing)}"
    compiled = "ptx" in how.values()
    if compiled and not jit:
        return f"it holds only PTX for {'+'.join(how)}, which the driver would compile at the first launch"
    return _driver_problem(record, compiled, machine) if device == "cuda" and here else None


def driver_floor(record: Mapping[str, Any]) -> str:
    """Returns the oldest CUDA that a driver must support to load the device code; empty without code for CUDA."""
    built, target = record["requires"].get("cuda", ""), Target.parse(record["target"])
    if target.device != "cuda" or not built:
        return ""
    has_code = any(name.startswith("sm_") for name in target.arch)
    return f"{built.split('.')[0]}.0" if has_code else ".".join(built.split(".")[:2])


def _driver_problem(record: Mapping[str, Any], compiled: bool, machine: Machine) -> str | None:
    """Returns why the driver is too old. Any minor release of a major one will do, except to compile PTX."""
    built, driver = record["requires"].get("cuda", ""), machine.driver
    if not built or driver is None:
        return None
    needed = version_of(built)[:2]
    offers = ".".join(map(str, driver))
    if not needed or driver[0] < needed[0]:
        return f"it was built with CUDA {built}, and the driver supports CUDA up to {offers}: update the driver"
    if compiled and driver < needed:
        return f"it holds PTX of CUDA {built} for this device, and the driver compiles PTX of CUDA {offers} and older"
    return None
