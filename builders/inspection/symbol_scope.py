"""Looks for a library's undefined symbols where the dynamic linker will: in the libraries that it needs, and in Python.

Symbols are looked up by the libraries' own tables of hashes, in files that are mapped: of torch's 400 MB a few pages
are read.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Collection, Iterable, Sequence

from .elf import map_library
from .elf_file import GLOBAL, UNDEFINED, ElfFile

LARGE = ("libtorch", "libc10")
"""Beginnings of the names of libraries that are read last: most symbols are in others."""
PROGRAM = "/proc/self/exe"
OF_TORCH = ("_ZN2at", "_ZN3c10", "_ZN5torch", "_ZNK2at", "_ZNK3c10", "_ZNK5torch", "aoti_torch_", "torch_")
"""Beginnings of torch's symbols: most libraries that need one are known by them."""
GLOBAL_OF_TORCH = "libtorch_global_deps.so"
"""The library that `import torch` opens for all others: what it needs is seen by every library."""
SYSTEM_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
CONFIGURED = "/etc/ld.so.conf.d/*.conf"


def missing_symbols(library: ElfFile, folders: Sequence[str], torch: str = "") -> list[str]:
    """Returns the symbols that a library needs and that no library has which will be loaded with it.

    There are none if one of the libraries cannot be found and read, as then nothing is known, or if the library is for
    another machine. A weak symbol may be missing.

    Args:
        library: The library.
        folders: Those in which the libraries that it needs are looked for, in order, before the system's.
        torch: The folder of torch's libraries; empty without torch.
    """
    wanted = _wanted(library)
    searched = [folder for folder in (torch, *folders) if folder] + _system_folders()
    try:
        program = map_library(PROGRAM)
        if not wanted or program.machine != library.machine:
            return []
        wanted = _not_in(wanted, program, os.path.dirname(os.path.realpath(PROGRAM)), searched)
        wanted = _not_in(wanted, library, "", searched)
        if wanted and torch and os.path.exists(path := os.path.join(torch, GLOBAL_OF_TORCH)):
            wanted = _not_in(wanted, map_library(path), torch, searched)
    except (OSError, ValueError):  # it is not found, not readable, or damaged
        return []
    here = ctypes.CDLL(None)  # what a program that embeds Python, or LD_PRELOAD, adds
    return sorted(name for name in wanted if not hasattr(here, name))


def not_defined_with(symbols: Iterable[str], path: str) -> list[str]:
    """Returns which symbols neither a library defines nor those that are loaded with it; all if one is not found."""
    wanted, folder = {*symbols}, os.path.dirname(path)
    try:
        wanted = _not_in(wanted, map_library(path), folder, [folder, *_system_folders()])
    except (OSError, ValueError):  # as in missing_symbols
        pass
    return sorted(wanted)


def uses_any(library: ElfFile, sonames: Collection[str], folders: Sequence[str]) -> bool:
    """Returns whether a library may use a symbol of these libraries, which it names: one that no other has.

    `folders` are those in which the others are looked for, before the system's.
    """
    wanted = _wanted(library)
    if any(name.startswith(OF_TORCH) for name in wanted):
        return True
    searched = [*folders, *_system_folders()]
    try:
        wanted = _not_in(wanted, map_library(PROGRAM), os.path.dirname(os.path.realpath(PROGRAM)), searched)
        return bool(_not_in(wanted, library, "", searched, sonames))
    except (OSError, ValueError):
        return True


def _wanted(library: ElfFile) -> set[str]:
    """Returns the symbols that a library needs. A weak one may be missing."""
    symbols = library.symbols(".dynsym")
    return {symbol.name for symbol in symbols if symbol.section == UNDEFINED and symbol.bind == GLOBAL and symbol.name}


def _not_in(
    wanted: set[str], file: ElfFile, origin: str, folders: Sequence[str], but: Collection[str] = ()
) -> set[str]:
    """Returns the symbols that neither a file defines nor what is loaded with it. Raises OSError if that is not found.

    `origin` is the file's folder; empty if it is not known. Libraries of the names `but` are passed over.
    """
    seen, waiting = {*but}, [(file, origin)]
    wanted = {name for name in wanted if not file.defines(name)}
    while waiting and wanted:  # the rest need not be there
        file, origin = waiting.pop(0)
        own = [_expanded(folder, origin) for folder in file.search_path()]
        for name in sorted(file.needed(), key=lambda name: name.startswith(LARGE)):
            if name in seen or not wanted:
                continue
            seen.add(name)
            path, needed = _found(name, file.machine, [*filter(None, own), *folders])
            wanted = {name for name in wanted if not needed.defines(name)}
            waiting.append((needed, os.path.dirname(os.path.realpath(path))))
    return wanted


def _expanded(folder: str, origin: str) -> str:
    """Returns a folder of a search path; empty if the file will lie elsewhere."""
    if "$" not in folder:
        return folder
    return folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) if origin else ""


def _found(name: str, machine: str, folders: Iterable[str]) -> tuple[str, ElfFile]:
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and (file := map_library(path)).machine == machine:
            return path, file
    raise FileNotFoundError(name)


def _system_folders() -> list[str]:
    """Returns the folders of the system's dynamic linker."""
    lines = list[str]()
    for path in sorted(glob.glob(CONFIGURED)):
        with open(path, encoding="utf-8", errors="replace") as file:
            lines += [line.strip() for line in file]
    named = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return [*filter(None, named), *(line for line in lines if line.startswith("/")), *SYSTEM_FOLDERS]
