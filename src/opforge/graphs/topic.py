"""What a bundle of compiled graphs is found by: its name, and what its graphs follow from besides the program."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from opforge.accelerator.host.cpuinfo import read_cpuinfo
from opforge.accelerator.select import get_accelerator
from opforge.builders.declaration import machine
from opforge.cache.keys import key_of
from opforge.cache.schema import TEXT, Schema
from opforge.errors import SettingError
from opforge.errors.base import printable
from opforge.fast_path.machine import python_tag
from opforge.foundation import environment
from opforge.torch_internals import inductor

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
EXPECTED = "up to 100 letters, digits, '_' and '-'"
TRITON_VERSION = re.compile(rb"^__version__ = ['\"]([^'\"]+)['\"]", re.MULTILINE)


class Topic(NamedTuple):
    """A name, and where its graphs fit. Two machines with the same topic can use each other's graphs."""

    name: str
    torch: str
    """torch's version; empty if there is none."""
    triton: str
    python: str
    level: str
    """The processor's level, such as x86-64-v3."""
    device: str
    """The accelerator, with its architecture if it has one: cpu, cuda:sm_90."""
    capability: str
    """ATEN_CPU_CAPABILITY, which chooses among the processor's vector instructions."""

    @property
    def key(self) -> str:
        """Returns the key of all fields."""
        return key_of(list(self))

    def __str__(self) -> str:
        """Returns the name under which stores have it."""
        return f"{self.name}/{self.key}"


FIELDS: Mapping[str, Schema] = dict.fromkeys(Topic._fields, TEXT)


def of(name: str) -> Topic:
    """Returns the topic of a name on this machine. Imports neither torch nor Triton. Raises SettingError."""
    if not NAME.fullmatch(name):
        raise SettingError("name", name, EXPECTED)
    here = machine.this_machine()
    return Topic(
        name=name,
        torch=here.torch or "",
        triton=_triton_version(),
        python=python_tag(),
        level=here.level or here.processor,
        device=_device(),
        capability=environment.variable(inductor.CAPABILITY),
    )


def of_facts(facts: Mapping[str, Any]) -> Topic:
    """Returns the topic that facts state."""
    return Topic(*(facts[name] for name in Topic._fields))


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


def features() -> tuple[str, ...]:
    """Returns the instructions that this machine's processor has, in the kernel's words.

    inductor compiles for the very processor (-march=native). One of the same level may lack what that has.
    """
    return read_cpuinfo().instructions


def lacking(needed: Collection[str]) -> str:
    """Returns in words what this machine's processor lacks of the features of another; empty if it has all."""
    missing = sorted(set(needed).difference(features()))
    shown = printable(", ".join(name[:40] for name in missing[:3]))  # others have written them
    return f"the processor lacks {shown}{' and more' if len(missing) > 3 else ''}" if missing else ""
