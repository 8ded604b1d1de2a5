"""Reads the kernels of a cubin from the assembler's records in its ELF sections."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

from .elf_file import ElfFile, Section
from .kernel import Kernel
from .reader import Reader

TEXT, INFO, SHARED = ".text.", ".nv.info", ".nv.shared."
REGISTERS, FRAME, NOTES = 0x2F, 0x11, 0x55
"""Attributes of .nv.info: (symbol, registers), (symbol, bytes of stack), and (kind, offset) of single instructions."""
SPILL = 1
"""The kind of an instruction that spills a register, or loads it back."""
ATTRIBUTE, PAIR = struct.Struct("<BBH"), struct.Struct("<II")
SIZED = 4
"""How an attribute's value is stored: after its header, which has the size. That of all others is in the header."""
NEW_LAYOUT = 8
"""The version of the format from which on the architecture is in the second byte of the flags."""

INSTRUCTION = 16
"""Bytes of a machine instruction, from sm_70 on. The lowest 12 bits are its operation."""
COPY, WAIT = 0xFAE, 0x91A
"""LDGSTS, which copies from global to shared memory, and DEPBAR, which waits until few copies are left."""
FIRST_WITH_COPIES = 80


def arch_of(cubin: Reader) -> str:
    """Returns the architecture of a cubin, such as sm_90; a letter (sm_90a) is not in the file."""
    elf = ElfFile(cubin)
    return f"sm_{(elf.flags >> 8 if elf.abi_version >= NEW_LAYOUT else elf.flags) & 0xFF}"


def kernels(cubin: Reader, arch: str) -> list[Kernel]:
    """Returns every kernel of a cubin. Raises FileFormatError if it is damaged."""
    elf = ElfFile(cubin)
    registers, stacks = _by_symbol(elf)
    names = sorted(name.removeprefix(TEXT) for name in elf.sections if name.startswith(TEXT))
    return [
        _kernel(elf, name, arch, registers.get(name), stacks.get(name))
        for name in names
        if f"{INFO}.{name}" in elf.sections
    ]


def _by_symbol(elf: ElfFile) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the registers, and the bytes of stack, of each function."""
    values: dict[int, dict[str, int]] = {REGISTERS: {}, FRAME: {}}
    symbols = elf.symbols(".symtab")
    for attribute, value in _attributes(elf, elf.sections.get(INFO)):
        if attribute in values and len(value) >= PAIR.size:
            index, number = PAIR.unpack_from(value)
            if index < len(symbols):
                values[attribute][symbols[index].name] = number
    return values[REGISTERS], values[FRAME]


def _attributes(elf: ElfFile, section: Section | None) -> Iterator[tuple[int, bytes]]:
    """Yields each attribute of a section with its value."""
    table, at = elf.content(section), 0
    while at + ATTRIBUTE.size <= len(table):
        form, attribute, size = table.unpack(ATTRIBUTE, at, "an attribute")
        at += ATTRIBUTE.size
        if form == SIZED:
            yield attribute, table.content(at, size, "the value of an attribute")
            at += size
        else:
            yield attribute, size.to_bytes(2, "little")


def _kernel(elf: ElfFile, name: str, arch: str, registers: int | None, stack: int | None) -> Kernel:
    code, shared = elf.sections[TEXT + name], elf.sections.get(SHARED + name)
    if registers is None:
        registers = code.info >> 24 or None  # older assemblers store it here
    spills = None
    for attribute, value in _attributes(elf, elf.sections[f"{INFO}.{name}"]):
        if attribute == NOTES:
            pairs = PAIR.iter_unpack(value[: len(value) // PAIR.size * PAIR.size])
            spills = (spills or 0) + sum(kind == SPILL for kind, _offset in pairs)
    if spills is None and not stack:
        spills = 0  # without a stack there are none
    copies, waits = _copies(elf.content(code), arch)
    return Kernel(name, arch, code.size, registers, shared.size if shared else 0, stack, spills, copies, waits)


def _copies(code: Reader, arch: str) -> tuple[int | None, int | None]:
    """Returns how many instructions copy asynchronously, and wait for that. None if the architecture has none."""
    number = arch.removeprefix("sm_")
    if not number.isdigit() or int(number) < FIRST_WITH_COPIES:
        return None, None
    content = code.content(0, len(code), "the code of a kernel")
    kinds = Counter((content[at] | content[at + 1] << 8) & 0xFFF for at in range(0, len(content) - 1, INSTRUCTION))
    return kinds[COPY], kinds[WAIT]
