"""Remembers which installed variant a call of `get_kernel` led to: the next process need not judge variants again.

The name of what is remembered covers the arguments, the folders that are searched, torch, and everything of the machine
that a variant for the CPU is judged by. It holds the stamps of the folders in which another release would appear. What
needs a device, other Python packages or the caller's lock file is not remembered. That nothing in the variant has
changed, and that its folder is nobody else's, is checked at each load.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from types import ModuleType
from typing import Any

import opforge
from opforge import settings, trust
from opforge.builders.spec import machine
from opforge.cache import machine_folder
from opforge.packages.installed import receipt

from .module import import_tree

FORMAT = 1
RACY_NS = 2_000_000_000
"""A folder that was changed so shortly before may be changed again without another stamp."""
Stamps = list[list[Any]]


def name_of(name: str, version: object, variant: str | None, caller: str) -> str:
    """Returns the name under which a call's outcome is remembered; empty if it must not be."""
    torch = sys.modules.get("torch")
    if torch is None or settings.variable("OPFORGE_KERNELS") or (version is None and caller):
        return ""
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    value = [FORMAT, "kernel", opforge.__version__, name, version, variant, settings.kernel_folders(), is_locked]
    value += [torch.__version__, torch.__file__, sys.platform, machine.libstdcxx(), *machine.name_parts()]
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def stamps(name: str) -> Stamps:
    """Returns the stamps of the folders in which releases of a package are. They must be taken before the search."""
    folders = [f"{root}/kernels/names/{name}" for root, _scope in settings.kernel_folders()]
    return [[folder, _stamp(folder)] for folder in folders]


def _stamp(folder: str) -> list[int] | None:
    try:
        return receipt.stamp_of(folder)
    except OSError:
        return None


def recall(key: str) -> ModuleType | None:
    """Returns the module that a call led to before; None if anything that led there has changed, or it cannot be had.

    Then the search is made in full, and says why.
    """
    kept = machine_folder.kept_folders()
    try:
        memory: Any = machine_folder.recall(key, kept) if kept else None
        if memory is None or memory["format"] != FORMAT or memory["key"] != key:
            return None
        if any(_stamp(folder) != stamp for folder, stamp in memory["stamps"]):
            return None
        folder = memory["folder"]
        if memory["scope"] != "environment" and root_problem(memory["root"]):
            return None
        return None if receipt.differs(folder, memory["receipt"]) else import_tree(folder, memory["module"])
    except Exception:  # of a damaged file, or of the package's own Python: the search says what is wrong
        return None


def root_problem(root: str) -> str:
    """Returns why a folder of installed packages cannot be trusted, or an empty text."""
    problem = trust.folder_problem(root, trust.trusted_ids(settings.trusted_owners()))
    return f"{problem[0]}: {problem[1]}" if problem else ""


def remember(key: str, before: Stamps, root: str, scope: str, folder: str, module: str, own: Any) -> None:
    """Remembers the variant in `folder`, with its receipt. If that fails, the next call searches, nothing else."""
    newest = max((stamp[2] for _folder, stamp in before if stamp), default=0)
    if time.time_ns() - newest < RACY_NS:
        return
    value = {"format": FORMAT, "key": key, "stamps": before, "root": root, "scope": scope, "folder": folder}
    value |= {"module": module, "receipt": dict(own)}
    machine_folder.remember(key, json.dumps(value).encode())
