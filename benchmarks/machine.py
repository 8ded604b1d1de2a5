"""What the figures were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from typing import Any


def describe() -> dict[str, Any]:
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
        "load_average": list(os.getloadavg()),
    }


def cores() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def byte_code(module: str = "opforge.settings") -> str:
    """Returns, in words, whether this process imported a module from compiled byte code."""
    imported = sys.modules.get(module)
    cached = getattr(imported, "__cached__", None)
    if sys.flags.dont_write_bytecode:
        return "compiled in memory (byte code is not written)"
    return "from .pyc files" if cached and os.path.exists(cached) else "compiled from source"
