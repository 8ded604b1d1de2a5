"""What a built library asks of the machine that loads it, compared with what is here: each "no" with its reason."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from opforge.accelerator.host.cpuinfo import cpu_level, read_cpuinfo
from opforge.accelerator.target import Target
from opforge.builders.spec.abi import STABLE, TORCH, python_tag, torch_folder, torch_version
from opforge.versions import version_of

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
MACHINES = {"x86-64": "x86_64", "aarch64": "aarch64"}


def lower_targets(target: Target) -> list[Target]:
    """The target and, for a CPU level, those below it: code for a lower level runs where the higher one does."""
    if target.device != "cpu" or len(target.arch) != 1 or target.arch[0] not in LEVELS:
        return [target]
    reached = LEVELS[: LEVELS.index(target.arch[0]) + 1]
    return [Target("cpu", (level,)) for level in reversed(reached)]


def other_levels(target: Target, known: Sequence[Target]) -> list[Target]:
    """The targets of the same processor's other levels, those in `known` apart."""
    if target.device != "cpu" or len(target.arch) != 1 or target.arch[0] not in LEVELS:
        return []
    return [one for one in (Target("cpu", (level,)) for level in LEVELS) if one not in known]


def cpu_objection(arch: Sequence[str]) -> str | None:
    """Why code for these CPU levels cannot run here, or None."""
    level = cpu_level()
    runs = LEVELS[: LEVELS.index(level) + 1] if level in LEVELS else (level,)
    missing = [one for one in arch if one not in runs]
    if missing:
        offers = level or read_cpuinfo().machine or "no known level"
        return f"it is built for {'+'.join(missing)}, and this processor offers {offers}"
    return None


def unfit(binary: Mapping[str, Any]) -> str | None:
    """Why a library cannot be loaded here, from its manifest alone and before dlopen; None where it can.

    Whether a device here runs its device code is `device_objection`'s to tell.
    """
    device, _, arch = str(binary["target"]).partition(":")
    if device == "cpu" and arch:
        objection = cpu_objection(arch.split("+"))
        if objection:
            return objection
    elif binary["machine"] != os.uname().machine:
        return f"its host code is for {binary['machine']}, and this machine is {os.uname().machine}"
    floors = binary["floors"]
    libc = os.confstr("CS_GNU_LIBC_VERSION") if sys.platform.startswith("linux") else None
    if libc and version_of(floors.get("GLIBC", "0")) > version_of(libc.split()[-1]):
        return f"it needs glibc {floors['GLIBC']}, and this system has {libc.split()[-1]}"
    library = _libstdcxx()
    if library and version_of(floors.get("GLIBCXX", "0")) > library:
        return f"it needs GLIBCXX_{floors['GLIBCXX']}, and the libstdc++ here ends at {'.'.join(map(str, library))}"
    return _torch_objection(binary)


def device_objection(binary: Mapping[str, Any], wanted: Sequence[str], jit: bool = True) -> str | None:
    """Why the device code of a library does not run on the devices here, or, without any, on the `wanted` ones.

    Without `jit` it is an objection that the driver would have to compile it first.
    """
    from .device_requirements import objection  # not on the way of an op for the CPU

    return objection(binary, wanted, jit)


def torch_lacks(libraries: Sequence[str]) -> str | None:
    """Why torch here cannot serve a library that needs these of torch's own libraries, or None."""
    folder = torch_folder()
    for name in libraries:
        of_torch = folder and name.startswith(("libtorch_", "libc10_"))
        if folder and of_torch and not os.path.exists(os.path.join(folder, "lib", name)):
            return f"it needs torch's {name}, which the installed torch {torch_version(folder)} does not have"
    return None


def _torch_objection(binary: Mapping[str, Any]) -> str | None:
    if binary["abi"] not in (STABLE, TORCH):
        return None
    folder = torch_folder()
    if folder is None:
        return "it needs torch, and torch is not installed"
    here = torch_version(folder)
    if not binary["target"].startswith("cpu") and (lacks := torch_lacks(binary["needs"])):
        return lacks
    if binary["abi"] == STABLE:
        if version_of(here)[:2] < version_of(binary["torch_target"]):
            return f"it needs torch {binary['torch_target']} or newer, and torch {here} is installed"
        return _shim_objection(binary, here)
    requires = binary["requires"]
    if requires["torch"] != here:
        return f"it was built for torch {requires['torch']}, and torch {here} is installed"
    if requires["python"] != python_tag():
        return f"it was built for {requires['python']}, and this is {python_tag()}"
    return None


def _shim_objection(binary: Mapping[str, Any], here: str) -> str | None:
    """The first function of torch's C interface that the library calls and the torch in this process lacks."""
    if "torch" not in sys.modules:
        return None
    import ctypes

    names = [name for name in binary["needs"] if name.startswith("libtorch_")]
    try:
        loaded = [ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY) for name in names]
    except OSError:
        return None  # under another name, which dlopen may know how to resolve
    missing = [one for one in binary.get("shims", ()) if not any(hasattr(library, one) for library in loaded)]
    return f"it calls torch's {missing[0]}, which torch {here} does not have" if missing else None


@cache
def _libstdcxx() -> tuple[int, ...] | None:
    """The newest GLIBCXX version of the libstdc++ in this process, which its file name states; None if unknown."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            found = re.search(r"(/\S*/libstdc\+\+\.so\S*)", file.read())
    except OSError:
        return None
    name = re.search(r"\.so\.6\.0\.(\d+)$", os.path.realpath(found[1])) if found else None
    return (3, 4, int(name[1])) if name else None
