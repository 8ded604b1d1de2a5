"""The topic by which compiled graphs are found: their label, and the state they depend on besides the program."""

from __future__ import annotations

import os
import re
import sys

from opforge.accelerator.select import get_accelerator
from opforge.builders.declaration import machine
from opforge.errors import SettingError
from opforge.fast_path.machine import python_tag
from opforge.foundation import environment, formats
from opforge.jits.page import LABEL, PageTopic
from opforge.torch_internals import inductor

from .content import ADAPTER

EXPECTED = "up to 100 letters, digits, '_' and '-'"
TRITON_VERSION = re.compile(rb"^__version__ = ['\"]([^'\"]+)['\"]", re.MULTILINE)


def of(name: str) -> PageTopic:
    """Returns the topic of a name on this machine. Imports neither torch nor Triton. Raises SettingError."""
    if not isinstance(name, str) or not re.fullmatch(LABEL, name):
        raise SettingError("name", name, EXPECTED)
    return PageTopic(ADAPTER, name, fingerprint())


def fingerprint() -> dict[str, str]:
    """Returns the target of graphs. Machines with the same target can use each other's graphs."""
    here = machine.this_machine()
    return {
        "device": _device(),
        "torch": here.torch or "",
        "triton": _triton_version(),
        "python": python_tag(),
        "level": here.level or here.processor,
        "capability": environment.variable(inductor.CAPABILITY),
        "format": str(formats.GRAPHS),
    }


def _triton_version() -> str:
    """Returns the version of the installed Triton; empty if there is none."""
    loaded = sys.modules.get("triton")
    if loaded is not None and hasattr(loaded, "__version__"):
        return str(loaded.__version__)
    folder = machine.package_folder("triton")
    try:
        with open(os.path.join(folder or os.devnull, "__init__.py"), "rb") as file:
            version = TRITON_VERSION.search(file.read(16 << 10))
    except OSError:
        return ""
    return version[1].decode("ascii", "replace") if version else ""


def _device() -> str:
    accelerator = get_accelerator()
    architecture = accelerator.device_arch()
    return f"{accelerator.name}:{architecture}" if architecture else accelerator.name
