"""Reads the kernels of a cubin from what the assembler recorded in its ELF sections."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

from .kernel import Kernel

TEXT, INFO, SHARED = ".text.", ".nv.info", ".nv.shared."
REGISTERS, FRAME, NOTES = 0x2F, 0x11, 0x55
"""Attributes of .nv.info: (symbol, registers), (symbol, bytes of stack), and (kind, offset) of single instructions."""
SPILL = 1
"""The kind of an instruction that spills a register, or loads it back."""
NO_VALUE, BYTE, SHORT, SIZED = 1, 2, 3, 4
"""How an attribute's value is stored: all but the last are in its header."""
NEW_LAYOUT = 8
"""The version of the format from which on the architecture is in the second byte of the flags."""


def arch_of(data: bytes) -> str:
    """Returns the architecture of a cubin, such as sm_90; a letter (sm_90a) is not in the file."""
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(data))
    flags = elf["e_flags"]
    new = elf.header["e_ident"]["EI_ABIVERSION"] >= NEW_LAYOUT
    return f"sm_{(flags >> 8 if new else flags) & 0xFF}"


def kernels(data: bytes, arch: str) -> list[Kernel]:
    """Returns every kernel of a cubin. Raises ValueError if the file is damaged."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(data))
        sections: dict[str, Any] = {section.name: section for section in elf.iter_sections()}
        table = sections.get(".symtab")
        names = [symbol.name for symbol in table.iter_symbols()] if table else []
        entries = {name.removeprefix(TEXT) for name in sections if name.startswith(TEXT)}
        registers, stacks = _by_symbol(sections.get(INFO), names)
        return [
            _kernel(name, arch, sections, registers.get(name), stacks.get(name))
            for name in sorted(entries)
            if f"{INFO}.{name}" in sections
        ]
    except (ELFError, struct.error) as error:
        raise ValueError(f"it holds a damaged cubin: {error}") from error


def _by_symbol(section: Any, names: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the registers, and the bytes of stack, of each function."""
    values: dict[int, dict[str, int]] = {REGISTERS: {}, FRAME: {}}
    for attribute, value in _attributes(section.data() if section else b""):
        if attribute in values and len(value) >= 8:
            index, number = struct.unpack_from("<II", value)
            if index < len(names):
                values[attribute][names[index]] = number
    return values[REGISTERS], values[FRAME]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields each attribute of a section with its value."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == SIZED:
            yield attribute, data[at : at + size]
            at += size
        else:
            yield attribute, data[at - 2 : at]


def _kernel(name: str, arch: str, sections: dict[str, Any], registers: int | None, stack: int | None) -> Kernel:
    code = sections[TEXT + name]
    if registers is None:
        registers = code["sh_info"] >> 24 or None  # older assemblers store it here
    shared = sections.get(SHARED + name)
    spills = None
    for attribute, value in _attributes(sections[f"{INFO}.{name}"].data()):
        if attribute == NOTES:
            kinds = [struct.unpack_from("<I", value, at)[0] for at in range(0, len(value) - 7, 8)]
            spills = (spills or 0) + kinds.count(SPILL)
    if spills is None and not stack:
        spills = 0  # without a stack there are none
    return Kernel(name, arch, code["sh_size"], registers, shared["sh_size"] if shared else 0, stack, spills)
