"""Reads the kernels of an AMD code object from the metadata that its loader reads."""

from __future__ import annotations

from typing import Any

from . import msgpack
from .elf_file import ElfFile
from .kernel import Kernel
from .reader import Reader

OWNER, METADATA = b"AMD", 32
"""The beginning of the name, and the type, of the note that holds the metadata as MessagePack."""


def _metadata(code: Reader, elf: ElfFile) -> dict[Any, Any]:
    """Returns the metadata; empty if there is none."""
    for note in elf.notes():
        if note.name.startswith(OWNER) and note.kind == METADATA:
            metadata = msgpack.unpack(note.content)
            if not isinstance(metadata, dict):
                raise code.damaged(f"its metadata is {metadata!r:.60}, expected a map")
            return metadata
    return {}


def arch_of(code: Reader) -> str:
    """Returns the architecture that the metadata names, such as gfx942; empty if it names none."""
    target = str(_metadata(code, ElfFile(code)).get("amdhsa.target", ""))
    return target.rpartition("--")[2] or target.rpartition("-")[2]


def kernels(code: Reader, arch: str) -> list[Kernel]:
    """Returns every kernel of a code object. Raises FileFormatError if it is damaged."""
    elf = ElfFile(code)
    entries = _metadata(code, elf).get("amdhsa.kernels", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise code.damaged("its metadata has no list of kernels")
    symbols = elf.symbols(".symtab") or elf.symbols(".dynsym")
    sizes = {symbol.name: symbol.size for symbol in symbols}
    return sorted((_kernel(code, entry, arch, sizes) for entry in entries), key=lambda kernel: kernel.name)


def _kernel(code: Reader, entry: dict[Any, Any], arch: str, sizes: dict[str, int]) -> Kernel:
    def number(field: str) -> int | None:
        value = entry.get(field)
        if value is not None and not isinstance(value, int):
            raise code.damaged(f"{field} of a kernel is {value!r:.60}, expected a number")
        return value

    name, spills = entry.get(".name"), [number(".vgpr_spill_count"), number(".sgpr_spill_count")]
    if not isinstance(name, str):
        raise code.damaged("a kernel of its metadata has no name")
    return Kernel(
        name=name,
        arch=arch,
        code=sizes.get(name, 0),
        registers=number(".vgpr_count"),
        shared=number(".group_segment_fixed_size"),
        stack=number(".private_segment_fixed_size"),
        spills=None if spills == [None, None] else sum(filter(None, spills)),
        scalar_registers=number(".sgpr_count"),
    )
