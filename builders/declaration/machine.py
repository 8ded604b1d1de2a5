"""The machine that ops are loaded on: its properties are read here alone, as a value that records are compared with.

Nothing here imports torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from opforge.accelerator.host.cpuid import cpu_level as cpu_level
from opforge.accelerator.host.cpuinfo import CPUInfo
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.errors import OpforgeError, OpIncompatibleError
from opforge.fast_path.machine import libc, libstdcxx, python_tag
from opforge.fast_path.machine import package_folder as package_folder
from opforge.fast_path.machine import python_include as python_include

if TYPE_CHECKING:
    from opforge.accelerator.interface.accelerator import Accelerator

NATIVE_FLAGS = ("-march=native", "-mcpu=native", "-mtune=native")
PROCESSOR = "processor"
"""The name, among what a binary requires, of the processor that one of these flags has compiled it for."""
PROCESSOR_FIELDS = frozenset(
    {
        *("vendor_id", "cpu family", "model", "cache size"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
    }
)
FEATURE_FIELDS = {"flags": "x86_64", "Features": "aarch64"}
CPU_INFO, CPU_INFO_LENGTH = "/proc/cpuinfo", 16 << 10


class Machine(NamedTuple):
    """The properties that decide whether a library can be loaded here. An unknown one is empty, and refuses none."""

    processor: str
    """The kind of processor, as `uname -m` prints it."""
    level: str
    """The highest level of the processor, such as x86-64-v3 or aarch64."""
    glibc: str = ""
    libstdcxx: str = ""
    """The newest GLIBCXX version of the libstdc++ in this process, such as 3.4.30."""
    python: str = ""
    torch: str | None = None
    """The version of the installed torch; None if there is none, empty if its files state none."""
    device: str = "cpu"
    """The kind of device that the following are read for. They are empty for `cpu`."""
    devices: tuple[str, ...] = ()
    """The architectures of the devices of this kind that this process can use."""
    driver: tuple[int, int] | None = None
    """The newest CUDA version that the driver supports."""
    torch_libraries: frozenset[str] = frozenset()
    """The names of torch's own libraries: a torch for another device lacks some."""


def this_machine(device: str = "cpu") -> Machine:
    """Returns the machine as it is now, with its devices of this kind."""
    folder = torch_folder()
    try:
        torch = torch_version(folder) if folder else None
    except (OSError, OpIncompatibleError):
        torch = ""
    machine = Machine(
        processor=os.uname().machine,
        level=cpu_level(),
        glibc=libc().rpartition(" ")[2],
        libstdcxx=libstdcxx(),
        python=python_tag(),
        torch=torch,
    )
    if device == "cpu":
        return machine
    libraries = Disk().names(os.path.join(folder, "lib")) if folder else frozenset[str]()
    driver = None
    if device == "cuda":
        from opforge.accelerator.vendors import nvidia

        driver = nvidia.driver_version()
    return machine._replace(device=device, devices=present(device), driver=driver, torch_libraries=libraries)


def native_processor(flags: Iterable[str]) -> str:
    """Returns an identifier of this machine's processor, if one of the flags is -march=native or its like; else empty.

    Two processors of one level may differ in features, and in what a compiler tunes for.
    """
    if not any(_is_native(flag, ()) for flag in flags):
        return ""
    try:
        with open(CPU_INFO, encoding="utf-8", errors="replace") as file:
            first = file.read(CPU_INFO_LENGTH).partition("\n\n")[0]
    except OSError:
        return "unknown"
    values = {}
    for line in first.split("\n"):
        name, _, text = line.partition(":")
        if name.strip() in PROCESSOR_FIELDS:
            values[name.strip()] = sorted(text.split())
        elif kind := FEATURE_FIELDS.get(name.strip()):
            values[name.strip()] = [*CPUInfo("", frozenset(text.split()), kind).instructions]
    return key_of(values)


def _is_native(flags: str, within: tuple[str, ...]) -> bool:
    """Returns whether one of NATIVE_FLAGS is in a text of flags, or in a file of flags that it names (@FILE).

    `within` are the files that are being read.
    """
    if any(name in flags for name in NATIVE_FLAGS):
        return True
    for word in flags.split() if "@/" in flags else ():
        path = word.partition("@")[2].rstrip("\"'")
        if path.startswith("/") and path not in within:
            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    text = file.read()
            except (OSError, ValueError):
                continue  # what the compiler says of it is clearer
            if _is_native(text, (*within, path)):
                return True
    return False


def present(device: str) -> tuple[str, ...]:
    """Returns the architectures of the devices of this kind that this process can use; empty if there are none."""
    accelerator = _accelerator_of(device)
    return tuple(arch for arch in accelerator.target().arch if arch != "native") if accelerator else ()


def current_arch(device: str) -> str:
    """Returns the architecture of the device of this kind that torch uses now; empty if it is unknown."""
    accelerator = _accelerator_of(device)
    return accelerator.device_arch() if accelerator else ""


def _accelerator_of(device: str) -> Accelerator | None:
    from opforge.accelerator.registry import accelerator_named
    from opforge.accelerator.select import get_accelerator

    getters: list[Callable[[], Accelerator]] = [get_accelerator, partial(accelerator_named, device)]
    for get in getters:
        try:
            accelerator = get()
            if accelerator.is_available() and accelerator.target().device == device:
                return accelerator
        except OpforgeError:
            continue  # the accelerator is unknown here, or the one in use is unavailable
    return None


def torch_folder() -> str | None:
    """Returns the folder of the installed torch, or None if there is none. Does not import it."""
    return package_folder("torch")


def torch_version(folder: str) -> str:
    """Returns the version that torch's own version.py states. Raises OpIncompatibleError if it states none."""
    loaded = sys.modules.get("torch")
    if loaded is not None and hasattr(loaded, "__version__"):
        return str(loaded.__version__)
    version = torch_states(folder, "__version__")
    if version is None:
        raise OpIncompatibleError("torch", folder, [f"{folder}/version.py states no version"])
    return version


def torch_states(folder: str, name: str) -> str | None:
    """Returns the value of `name`, such as `cuda`, in torch's own version.py; None if that is None or missing."""
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        for line in file:
            if line.startswith(name):
                value = line.partition("=")[2].strip()
                return None if value == "None" else value.strip("'\"")
    return None


def torch_built_for(name: str) -> str | None:
    """Returns the release of `cuda` or `hip` that the installed torch is built for; None if there is none."""
    folder = torch_folder()
    return torch_states(folder, name) if folder else None
