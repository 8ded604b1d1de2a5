"""The machine on which figures were measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def describe(device: str = "cpu") -> dict[str, Any]:
    """Returns the processor, cores, memory in bytes, versions, and the load average at the start of the run."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "opforge": _version("opforge"),
        "compiler": _compiler_version(),
        "device": _device_name(device),
        "threads": _threads(),
        "load_average": list(os.getloadavg()),
    }


FACTS = ("cpu", "cores", "memory", "system", "python", "torch", "opforge", "compiler", "device", "threads")
"""The fields that describe a machine; the load average belongs to a run."""
IDENTITY = ("cpu", "cores", "memory", "system", "device")
"""The fields that must be equal in two compared runs. Versions may differ: a comparison may be of versions."""


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns (fact, first's value, second's value) for each fact in which two machines differ."""
    pairs = [(name, _identity(first, name), _identity(second, name)) for name in IDENTITY]
    return [(name, before, now) for name, before, now in pairs if before != now]


def _identity(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name, "")
    if name == "memory":  # kernels of two versions reserve different amounts
        return f"{round(float(value or 0) / 2**30)} GiB"
    if name == "system":  # the kernel's version is no other machine
        words = str(value).split()
        return f"{words[0]} {words[-1]}" if words else ""
    return str(value)


def cores() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _device_name(device: str) -> str:
    """Returns the name of a device other than the host: its kind, if torch has no name for it. Empty for the host."""
    if device == "cpu":
        return ""
    import torch

    try:
        # torch.mps, and modules of some vendors, have no such function.
        read_name = torch.get_device_module(device).get_device_name
    except (AttributeError, RuntimeError):
        return device
    return str(read_name(0))


def device_name(device: str) -> str:
    """Returns the name of a device; of the host, its processor. Opens the device."""
    return _device_name(device) or _cpu()


def _threads() -> int:
    """Returns the threads that torch uses for one operator, if this process has imported torch; otherwise 0."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch else 0


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "Model", "CPU part"):
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def compiler() -> list[str]:
    """Returns the command that starts the C++ compiler."""
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def _compiler_version() -> str:
    try:
        process = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=False)
        return (process.stdout.splitlines() or ["unknown"])[0]
    except OSError as error:
        return f"none ({error.strerror})"
