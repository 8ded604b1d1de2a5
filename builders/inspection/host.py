"""The host's half of a library: what it exports and needs, and how large its functions are."""

from __future__ import annotations

import io
from typing import Any

from . import elf

HOLDERS = (".nv_fatbin", ".hip_fatbin", ".rodata", ".data")
"""The sections of a library that may hold device code."""


def sections(data: bytes) -> tuple[str, dict[str, bytes]]:
    """The machine of an ELF file, and the sections that may hold device code. Raises ValueError where it is damaged."""
    from elftools.common.exceptions import ELFError

    try:
        read = _read(data)
        found = {one.name: one.data() for one in read.iter_sections() if one.name in HOLDERS}
        return str(read["e_machine"]), found
    except ELFError as error:
        raise ValueError(f"it is a damaged ELF file: {error}") from error


def _read(data: bytes) -> Any:
    from elftools.elf.elffile import ELFFile

    return ELFFile(io.BytesIO(data))


def host_code(path: str, data: bytes) -> dict[str, Any]:
    """machine, exports, needs, floors, `functions` (name and bytes of each, the largest first), `undefined` names."""
    read = _read(data)
    table = read.get_section_by_name(".symtab") or read.get_section_by_name(".dynsym")
    sizes: dict[str, int] = {}
    for symbol in table.iter_symbols() if table else ():
        own = symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
        if own and symbol["st_size"]:
            sizes[symbol.name] = max(symbol["st_size"], sizes.get(symbol.name, 0))
    dynamic = read.get_section_by_name(".dynsym")
    undefined = [one.name for one in (dynamic.iter_symbols() if dynamic else ()) if one["st_shndx"] == "SHN_UNDEF"]
    functions = sorted(sizes.items(), key=lambda one: (-one[1], one[0]))
    return {
        **elf.read_library(path),
        "functions": [{"name": name, "size": size} for name, size in functions],
        "undefined": [name for name in undefined if name],
    }
