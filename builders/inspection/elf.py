"""Reads a built library's exports, its requirements, the oldest system that can load it, and its functions' sizes."""

from __future__ import annotations

import os
import re
from mmap import ACCESS_READ, mmap
from typing import Any

from opforge.foundation.files import read_file
from opforge.foundation.versions import version_of

from . import shims
from .elf_file import CHOSEN, DEFAULT, FUNCTION, GLOBAL, UNDEFINED, WEAK, ElfFile, Symbol
from .reader import FileFormatError, Reader

VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_(\d{1,9}(?:\.\d{1,9}){0,9})")
MAX_BYTES = (2 << 30) - (4 << 10)
"""The size of the largest file that is read: no more can be read at once. Code refers to data at most 2 GiB away."""


def read_library(path: str) -> dict[str, Any]:
    """Returns the result of `of_library` for a file. Raises OSError, FileFormatError if it is no intact library."""
    return of_library(open_library(path))


def open_library(path: str) -> ElfFile:
    """Returns a library. Raises OSError, FileFormatError."""
    return ElfFile(Reader(read_file(path, MAX_BYTES), path))


def map_library(path: str) -> ElfFile:
    """Returns a library of which only the requested parts are read: it may hold a model's weights.

    It must be one that nobody changes meanwhile: a mapped file that is cut short ends the process.
    Raises OSError, FileFormatError.
    """
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:  # of which there is no map
            raise FileFormatError(f"{path} is empty, and no ELF file")
        return ElfFile(Reader(mmap(file.fileno(), 0, access=ACCESS_READ), path))


def of_library(elf: ElfFile) -> dict[str, Any]:
    """Returns the exports and needs of a library, for JSON. Raises FileFormatError if it is damaged.

    `machine`; `exports`: names of functions; `needs`: sonames; `floors`: GLIBC, GLIBCXX and CXXABI with the newest
    version that a symbol needs; `shims`: the functions of torch's C interface without which it does not load.
    """
    symbols = elf.symbols(".dynsym")
    return {
        "machine": elf.machine,
        "exports": sorted(symbol.name for symbol in symbols if _is_exported(symbol)),
        "needs": elf.needed(),
        "floors": _floors(elf.needed_versions()),
        "shims": sorted(name for name in undefined(symbols, and_weak=False) if name.startswith(shims.PREFIXES)),
    }


def host_code(file: ElfFile) -> dict[str, Any]:
    """Returns the result of `read_library` with `functions`: name and size of each in bytes, the largest first.

    Raises FileFormatError if the file is damaged.
    """
    sizes: dict[str, int] = {}
    for symbol in file.symbols(".symtab") or file.symbols(".dynsym"):
        if symbol.section != UNDEFINED and symbol.kind == FUNCTION and symbol.size:
            sizes[symbol.name] = max(symbol.size, sizes.get(symbol.name, 0))
    functions = sorted(sizes.items(), key=lambda function: (-function[1], function[0]))
    return {**of_library(file), "functions": [{"name": name, "size": size} for name, size in functions]}


def undefined(symbols: list[Symbol], and_weak: bool = True) -> list[str]:
    """Returns the names that a table of symbols does not define. A library loads without those that are weak."""
    absent = (symbol for symbol in symbols if symbol.section == UNDEFINED and symbol.name)
    return [symbol.name for symbol in absent if and_weak or symbol.bind != WEAK]


def _is_exported(symbol: Symbol) -> bool:
    return (
        symbol.section != UNDEFINED
        and symbol.bind in (GLOBAL, WEAK)
        and symbol.kind in (FUNCTION, CHOSEN)
        and symbol.visibility == DEFAULT
        and not symbol.name.startswith("_Z")
        and "." not in symbol.name  # a part of a function that the compiler has named
    )


def _floors(versions: list[str]) -> dict[str, str]:
    newest: dict[str, str] = {}
    for match in filter(None, map(VERSION.fullmatch, versions)):
        if version_of(match[2]) > version_of(newest.get(match[1], "0")):
            newest[match[1]] = match[2]
    return dict(sorted(newest.items()))
