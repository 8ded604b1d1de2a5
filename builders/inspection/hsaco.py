"""Reads the kernels of an AMD code object from the metadata that its loader reads."""

from __future__ import annotations

import io
from typing import Any

from .kernel import Kernel

METADATA = 32
"""The type of the note that holds the metadata, as MessagePack."""
NO_MSGPACK = "its kernels' registers are in MessagePack: pip install msgpack to show them"


def _note(data: bytes) -> bytes:
    """Returns the note that holds the metadata; empty if there is none."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import NoteSection

    for section in ELFFile(io.BytesIO(data)).iter_sections():
        if isinstance(section, NoteSection):
            for note in section.iter_notes():
                if note["n_name"].startswith("AMD") and note["n_type"] in (METADATA, "NT_AMDGPU_METADATA"):
                    content = note["n_descdata"]
                    return content if isinstance(content, bytes) else bytes(str(content), "latin-1")
    return b""


def _metadata(data: bytes) -> dict[str, Any] | None:
    """Returns the metadata, or None if msgpack is not installed. Raises ValueError if it is damaged."""
    try:
        import msgpack
    except ImportError:
        return None
    packed = _note(data)
    try:
        metadata = msgpack.unpackb(packed) if packed else {}
    except Exception as error:  # msgpack's errors have no common base class
        raise ValueError(f"it holds a code object with damaged metadata: {error}") from error
    return metadata if isinstance(metadata, dict) else {}


def arch_of(data: bytes) -> str:
    """Returns the architecture that the metadata names, such as gfx942; empty if it cannot be read."""
    target = str((_metadata(data) or {}).get("amdhsa.target", ""))
    return target.rpartition("--")[2] or target.rpartition("-")[2]


def kernels(data: bytes, arch: str) -> tuple[list[Kernel], str]:
    """Returns every kernel of a code object, and why they could not be read; empty if they could."""
    from elftools.elf.elffile import ELFFile

    metadata = _metadata(data)
    if metadata is None:
        return [], NO_MSGPACK
    elf = ELFFile(io.BytesIO(data))
    table: Any = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
    sizes = {symbol.name: symbol["st_size"] for symbol in (table.iter_symbols() if table else ())}
    read = []
    for entry in metadata.get("amdhsa.kernels", ()):
        spills = [entry[name] for name in (".vgpr_spill_count", ".sgpr_spill_count") if name in entry]
        read.append(
            Kernel(
                name=entry[".name"],
                arch=arch,
                code=sizes.get(entry[".name"], 0),
                registers=entry.get(".vgpr_count"),
                shared=entry.get(".group_segment_fixed_size"),
                stack=entry.get(".private_segment_fixed_size"),
                spills=sum(spills) if spills else None,
                scalar_registers=entry.get(".sgpr_count"),
            )
        )
    return sorted(read, key=lambda kernel: kernel.name), ""
