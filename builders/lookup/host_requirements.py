"""Whether a built library can be loaded on this machine: processor, glibc, libstdc++, torch, Python."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from opforge.builders.spec.abi import STABLE, TORCH
from opforge.builders.spec.installed_torch import missing_library_problem, python_tag, torch_folder, torch_version
from opforge.builders.spec.targets import cpu_problem
from opforge.versions import version_of


def host_problem(binary: Mapping[str, Any]) -> str | None:
    """Returns why a library cannot be loaded here, from its record and before dlopen; None if it can be.

    Its device code is checked by `device_problem`.
    """
    device, _, arch = str(binary["target"]).partition(":")
    if device == "cpu" and arch:
        problem = cpu_problem(arch.split("+"))
        if problem:
            return problem
    elif binary["machine"] != os.uname().machine:
        return f"its host code is for {binary['machine']}, and this machine is {os.uname().machine}"
    floors = binary["floors"]
    libc = os.confstr("CS_GNU_LIBC_VERSION") if sys.platform.startswith("linux") else None
    if libc and version_of(floors.get("GLIBC", "0")) > version_of(libc.split()[-1]):
        return f"it needs glibc {floors['GLIBC']}, and this system has {libc.split()[-1]}"
    library = installed_libstdcxx()
    if library and version_of(floors.get("GLIBCXX", "0")) > library:
        return f"it needs GLIBCXX_{floors['GLIBCXX']}, and this libstdc++ has up to {'.'.join(map(str, library))}"
    return _torch_problem(binary)


def _torch_problem(binary: Mapping[str, Any]) -> str | None:
    if binary["abi"] not in (STABLE, TORCH):
        return None
    folder = torch_folder()
    if folder is None:
        return "it needs torch, and torch is not installed"
    here = torch_version(folder)
    if not binary["target"].startswith("cpu") and (problem := missing_library_problem(binary["needs"])):
        return problem
    if binary["abi"] == STABLE:
        if version_of(here)[:2] < version_of(binary["torch_target"]):
            return f"it needs torch {binary['torch_target']} or newer, and torch {here} is installed"
        # A newer torch has every function that an older one has. Looking them up takes longer than loading the op.
        is_older = version_of(here) < version_of(str(binary.get("built_with_torch") or "9999"))
        return _shim_problem(binary, here) if is_older else None
    requires = binary["requires"]
    if requires["torch"] != here:
        return f"it was built for torch {requires['torch']}, and torch {here} is installed"
    if requires["python"] != python_tag():
        return f"it was built for {requires['python']}, and this is {python_tag()}"
    return None


def _shim_problem(binary: Mapping[str, Any], here: str) -> str | None:
    """Returns the first function of torch's C interface that the library calls and this process's torch lacks."""
    if "torch" not in sys.modules:
        return None
    import ctypes

    names = [name for name in binary["needs"] if name.startswith("libtorch_")]
    try:
        loaded = [ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY) for name in names]
    except OSError:
        return None  # under another name, which dlopen may know how to resolve
    missing = [shim for shim in binary.get("shims", ()) if not any(hasattr(library, shim) for library in loaded)]
    return f"it calls torch's {missing[0]}, which torch {here} does not have" if missing else None


@cache
def installed_libstdcxx() -> tuple[int, ...] | None:
    """Returns the newest GLIBCXX version of the libstdc++ in this process, which its file name states, or None."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            match = re.search(r"(/\S*/libstdc\+\+\.so\S*)", file.read())
    except OSError:
        return None
    name = re.search(r"\.so\.6\.0\.(\d+)$", os.path.realpath(match[1])) if match else None
    return (3, 4, int(name[1])) if name else None
