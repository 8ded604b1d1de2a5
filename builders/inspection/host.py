"""Reads the host code of a library: what it exports and needs, and how large its functions are."""

from __future__ import annotations

import io
from typing import Any

from . import elf

HOLDERS = (".nv_fatbin", ".hip_fatbin", ".rodata", ".data")
"""The sections of a library that may hold device code."""


def sections(data: bytes) -> tuple[str, dict[str, bytes]]:
    """Returns the machine of an ELF file, and its sections that may hold device code, by name.

    Raises ValueError if the file is damaged.
    """
    from elftools.common.exceptions import ELFError

    try:
        elf_file = _elf_file(data)
        holders = {section.name: section.data() for section in elf_file.iter_sections() if section.name in HOLDERS}
        return str(elf_file["e_machine"]), holders
    except ELFError as error:
        raise ValueError(f"it is a damaged ELF file: {error}") from error


def _elf_file(data: bytes) -> Any:
    from elftools.elf.elffile import ELFFile

    return ELFFile(io.BytesIO(data))


def host_code(path: str, data: bytes) -> dict[str, Any]:
    """Returns what `elf.read_library` does, and `functions` and `undefined`, JSON-able.

    `functions`: name and size of each in bytes, the largest first; `undefined`: the names that it does not define.
    """
    elf_file = _elf_file(data)
    table = elf_file.get_section_by_name(".symtab") or elf_file.get_section_by_name(".dynsym")
    sizes: dict[str, int] = {}
    for symbol in table.iter_symbols() if table else ():
        own = symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
        if own and symbol["st_size"]:
            sizes[symbol.name] = max(symbol["st_size"], sizes.get(symbol.name, 0))
    dynamic = elf_file.get_section_by_name(".dynsym")
    symbols = dynamic.iter_symbols() if dynamic else ()
    undefined = [symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"]
    functions = sorted(sizes.items(), key=lambda function: (-function[1], function[0]))
    return {
        **elf.read_library(path),
        "functions": [{"name": name, "size": size} for name, size in functions],
        "undefined": [name for name in undefined if name],
    }
