"""What a record says of a library: its ABI, its target, what it exports and what it needs."""

from __future__ import annotations

import hashlib
from typing import Any

from opforge import settings
from opforge.builders.declaration.abi import INTERFACE, PLAIN, REGISTER, STABLE, TORCH
from opforge.builders.declaration.machine import torch_folder, torch_version
from opforge.builders.inspection import elf

from . import diagnostics
from .job import Job


def read(job: Job, library: str, key: str) -> dict[str, Any]:
    """Returns the record of a library that was just linked, for the entry with this key.

    Raises CompileError if the library lacks what its ABI promises.
    """
    plan = job.plan
    try:
        symbols = elf.read_library(library)
    except ValueError as error:
        raise diagnostics.not_loadable(plan.op, str(error)) from error
    with open(library, "rb") as file:
        content = file.read()
    exports = symbols["exports"]
    modules = [name.removeprefix("PyInit_") for name in exports if name.startswith("PyInit_")]
    if plan.abi == STABLE and REGISTER not in exports:
        raise diagnostics.no_registration(plan.op)
    if plan.abi == TORCH and modules and plan.op not in modules and REGISTER not in exports:
        raise diagnostics.wrong_module_name(plan.op, modules[0])
    if plan.abi == PLAIN and not exports:
        raise diagnostics.no_exports(plan.op)
    peaks = job.needs.stated() if job.needs else {}
    return {
        "file": f"{plan.op}-{key[:16]}.so",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "op": plan.op,
        "abi": plan.abi,
        "target": plan.target,
        "torch_target": job.torch_target,
        "requires": dict(plan.requires),
        "interface": INTERFACE,
        "built_with_torch": _torch_version(plan.abi),
        "portable": job.portable,
        "user_flags": settings.user_flags(),
        "python_module": plan.abi == TORCH and plan.op in modules,
        **symbols,
        **({"peaks": peaks} if peaks else {}),
    }


def _torch_version(abi: str) -> str:
    """Returns the version of the torch whose headers were compiled against; empty if none were."""
    folder = torch_folder() if abi != PLAIN else None
    return torch_version(folder) if folder else ""
