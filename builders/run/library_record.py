"""The library in an entry's record: its ABI, its target, its exports and its requirements."""

from __future__ import annotations

import logging
import os
from typing import Any

from opforge.builders.declaration.abi import FACADE, INTERFACE, PLAIN, REGISTER, STABLE, WITH_MODULES
from opforge.builders.declaration.machine import torch_folder, torch_version
from opforge.builders.inspection import elf, symbol_scope
from opforge.builders.inspection.elf_file import ElfFile
from opforge.cache.filesystem.disk import digest_of
from opforge.foundation import settings

from . import diagnostics
from .job import Job
from .reads.files_read import arguments, linker_folders, run_paths, search_folders

log = logging.getLogger("opforge")


def read(job: Job, library: str, key: str) -> dict[str, Any]:
    """Returns the record of a library that was just linked, for the entry with this key.

    Raises CompileError if the library lacks what its ABI promises, or a library of a setup script lacks a symbol.
    """
    plan = job.plan
    try:
        file = elf.map_library(library)
        symbols = elf.of_library(file)
    except ValueError as error:
        raise diagnostics.not_loadable(plan.op, str(error)) from error
    with open(library, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        digest = digest_of(stream.fileno(), size)
    exports = symbols["exports"]
    modules = [name.removeprefix("PyInit_") for name in exports if name.startswith("PyInit_")]
    if plan.abi == STABLE and REGISTER not in exports:
        raise diagnostics.no_registration(plan.op)
    if plan.abi in WITH_MODULES and modules and plan.op not in modules and REGISTER not in exports:
        raise diagnostics.wrong_module_name(plan.op, modules[0])
    if plan.abi == FACADE and not modules and REGISTER not in exports and not job.is_extension:
        raise diagnostics.nothing_for_python(plan.op)
    if plan.abi == PLAIN and not exports:
        raise diagnostics.no_exports(plan.op)
    _check_symbols(job, file)
    peaks = job.needs.stated() if job.needs else {}
    return {
        "file": f"{plan.op}-{key[:16]}.so",
        "size": size,
        "sha256": digest,
        "op": plan.op,
        "abi": plan.abi,
        "target": plan.target,
        "torch_target": job.torch_target,
        "requires": dict(plan.requires),
        "interface": INTERFACE,
        "built_with_torch": _torch_version(plan.abi),
        "portable": job.portable,
        "user_flags": settings.user_flags(),
        "python_module": plan.abi in WITH_MODULES and plan.op in modules,
        **symbols,
        **({"peaks": peaks} if peaks else {}),
    }


def _check_symbols(job: Job, file: ElfFile) -> None:
    """Reports symbols that no library has which will be loaded with this one: the import or the load would fail.

    In a build by a setup script, whose library is loaded elsewhere, that is a CompileError; otherwise a warning.
    """
    flags = (*job.plan.compile_flags, *job.plan.link_flags)
    if settings.allow_undefined() or any(flag.startswith("-fsanitize") for flag in flags):
        return  # a sanitizer's runtime is often loaded by LD_PRELOAD
    torch = torch_folder()
    names = symbol_scope.missing_symbols(file, _folders(job), os.path.join(torch, "lib") if torch else "")
    if not names:
        return
    error = diagnostics.missing_symbols(job.plan.op, names)
    if job.is_extension:
        raise error
    log.warning("%s", error)


def uses_stubs(job: Job, library: str) -> bool:
    """Returns whether a library that was just linked may use a symbol of one of torch's libraries that it names."""
    try:
        return symbol_scope.uses_any(elf.map_library(library), job.plan.stubs, _folders(job))
    except ValueError:
        return True


def _folders(job: Job) -> list[str]:
    """Returns the folders in which the libraries that a link names are."""
    words = arguments(job.located_plan.link_flags)
    beside = [os.path.dirname(word) for word in words if word.startswith("/") and ".so" in word]
    return [*search_folders(job), *linker_folders(job), *beside, *run_paths(words), *job.toolchain.library_folders()]


def _torch_version(abi: str) -> str:
    """Returns the version of the torch whose headers were compiled against; empty if none were."""
    folder = torch_folder() if abi != PLAIN else None
    return torch_version(folder) if folder else ""
