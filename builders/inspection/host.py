"""Reads the host code of a library: what it exports and needs, and how large its functions are."""

from __future__ import annotations

from typing import Any

from . import elf
from .elf_file import FUNCTION, UNDEFINED, ElfFile


def host_code(file: ElfFile) -> dict[str, Any]:
    """Returns what `elf.read_library` does, and `functions` and `undefined`, JSON-able.

    `functions`: name and size of each in bytes, the largest first; `undefined`: the names that it does not define.
    Raises FileFormatError if the file is damaged.
    """
    dynamic = file.symbols(".dynsym")
    sizes: dict[str, int] = {}
    for symbol in file.symbols(".symtab") or dynamic:
        if symbol.section != UNDEFINED and symbol.kind == FUNCTION and symbol.size:
            sizes[symbol.name] = max(symbol.size, sizes.get(symbol.name, 0))
    functions = sorted(sizes.items(), key=lambda function: (-function[1], function[0]))
    return {
        **elf.of_library(file),
        "functions": [{"name": name, "size": size} for name, size in functions],
        "undefined": elf.undefined(dynamic),
    }
