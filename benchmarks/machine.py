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
    """Processor, cores, memory (bytes), versions, and how busy the machine is as the run begins."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "opforge": _version("opforge"),
        "compiler": _compiler(),
        "load_average": list(os.getloadavg()),
    }


def cores() -> int:
    """How many processors this process may use."""
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
    """The command that starts the C++ compiler."""
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def _compiler() -> str:
    try:
        done = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=False)
        return (done.stdout.splitlines() or ["unknown"])[0]
    except OSError as error:
        return f"none ({error.strerror})"


def byte_code(module: str = "opforge.settings") -> str:
    """Whether this process imported a module from compiled byte code, in words."""
    loaded = sys.modules.get(module)
    cached = getattr(loaded, "__cached__", None)
    if sys.flags.dont_write_bytecode:
        return "compiled in memory (byte code is not written)"
    return "from .pyc files" if cached and os.path.exists(cached) else "compiled from source"
