"""The environment that variants must fit: the machine, and the Python and torch that would load them."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.builders.declaration import machine
from opforge.builders.declaration.machine import Machine
from opforge.foundation import formats
from opforge.foundation.versions import version_of
from opforge.packages.form.properties import TVM

DEVICES = {"cuda": "cuda", "rocm": "hip", "xpu": "xpu"}
"""Backend of a variant -> device of a target."""
TOOLKITS = {"cuda": "cuda", "hip": "hip", "xpu": "sycl"}
"""Device -> the name in a record's `requires` of the toolkit that the library was built with."""
STATED = {"cuda": "cuda", "hip": "rocm", "xpu": "xpu"}
"""Name in torch's version.py -> the backend that torch was built for."""


EXPECTED = "what `opforge report --machine` writes"


class Environment(NamedTuple):
    """A machine with its Python and torch."""

    system: str
    machines: Mapping[str, Machine]
    """By device. The one for `cpu` is always there."""
    backend: str
    """The backend that torch was built for: cuda, rocm, xpu, metal or cpu."""
    backend_version: tuple[int, int] | None = None
    free_threaded: bool = False
    tvm_ffi: str = ""
    """The version of tvm-ffi; empty if it is not installed."""

    @property
    def host(self) -> Machine:
        """The machine without its devices."""
        return self.machines["cpu"]

    def to_json(self) -> dict[str, Any]:
        """Returns the value as `opforge report --machine` writes it."""
        machines = {
            device: {**value._asdict(), "torch_libraries": sorted(value.torch_libraries)}
            for device, value in self.machines.items()
        }
        return {"format": formats.MACHINE, **self._asdict(), "machines": machines}


def here(backends: Collection[str] = ()) -> Environment:
    """Returns this machine, with the devices of these backends, or of all that torch knows if there is "all".

    Does not import torch.
    """
    machines = {"cpu": machine.this_machine("cpu")}
    backend, version = _torch_backend()
    wanted_devices = {DEVICES[name] for name in backends if name in DEVICES}
    if "all" in backends and backend in DEVICES:
        wanted_devices.add(DEVICES[backend])
    for device in sorted(wanted_devices):
        machines[device] = machine.this_machine(device)
    return Environment(
        system=sys.platform,
        machines=machines,
        backend=backend,
        backend_version=version,
        free_threaded=not getattr(sys, "_is_gil_enabled", lambda: True)(),
        tvm_ffi=_tvm_ffi() if TVM in backends or "all" in backends else "",
    )


def of_each_device(here: Environment) -> list[Environment]:
    """Returns the environment for each architecture of the devices here; `here` itself if they are all alike."""
    for device, value in here.machines.items():
        if len(value.devices) > 1:
            return [_with_arch(here, device, arch) for arch in value.devices]
    return [here]


def of_current_device(here: Environment) -> Environment:
    """Returns the environment for the device that torch uses now; `here` itself if all are alike or it is unknown."""
    for device, value in here.machines.items():
        if len(value.devices) > 1 and (arch := machine.current_arch(device)):
            return _with_arch(here, device, arch)
    return here


def _with_arch(here: Environment, device: str, arch: str) -> Environment:
    return here._replace(machines={**here.machines, device: here.machines[device]._replace(devices=(arch,))})


def _torch_backend() -> tuple[str, tuple[int, int] | None]:
    """Returns the backend that the installed torch was built for, and its version, from torch's own version.py."""
    folder = machine.torch_folder()
    states: dict[str, str | None] = {}
    loaded = getattr(sys.modules.get("torch"), "version", None)
    for name in STATED:
        try:
            states[name] = getattr(loaded, name, None) if loaded else machine.torch_states(folder or "", name)
        except OSError:
            states[name] = None
    for name, backend in STATED.items():
        if text := states[name]:
            numbers = version_of(text)
            return backend, (numbers[0], numbers[1]) if len(numbers) > 1 else None
    return ("metal" if sys.platform == "darwin" and os.uname().machine == "arm64" else "cpu"), None


def _tvm_ffi() -> str:
    from importlib import metadata

    for name in ("apache-tvm-ffi", "tvm-ffi"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _schema() -> Mapping[str, Any]:
    """Returns the schema of what `to_json` writes. Not on the path of a load: another machine's report is read here."""
    from opforge.cache.schema import FLAG, TEXT, TEXTS, maybe, record, row, table, version, whole

    pair = maybe(row(whole(), whole()))
    stated = {"glibc": TEXT, "libstdcxx": TEXT, "python": TEXT, "torch": maybe(TEXT), "device": TEXT, "devices": TEXTS}
    one = record({"processor": TEXT, "level": TEXT}, optional={**stated, "driver": pair, "torch_libraries": TEXTS})
    return record(
        {
            "format": version(formats.MACHINE),
            "system": TEXT,
            "machines": {**table(one), "required": ["cpu"]},
            "backend": TEXT,
        },
        optional={"backend_version": pair, "free_threaded": FLAG, "tvm_ffi": TEXT},
    )


def from_json(value: Any, where: str) -> Environment:
    """Returns the environment that `to_json` gave. Raises KernelFormatError."""
    from opforge.cache import schema
    from opforge.errors import KernelFormatError

    if problem := schema.problem(value, _schema()):
        raise KernelFormatError(where, problem, EXPECTED)
    fields = {name: part for name, part in value.items() if name != "format"}
    fields["machines"] = {device: _machine(part) for device, part in value["machines"].items()}
    return Environment(**{**fields, "backend_version": _pair(value.get("backend_version"))})


def _machine(value: Mapping[str, Any]) -> Machine:
    lists = {"devices": tuple(value.get("devices", ())), "torch_libraries": frozenset(value.get("torch_libraries", ()))}
    return Machine(**{**value, **lists, "driver": _pair(value.get("driver"))})


def _pair(numbers: Sequence[int] | None) -> tuple[int, int] | None:
    return (numbers[0], numbers[1]) if numbers else None
