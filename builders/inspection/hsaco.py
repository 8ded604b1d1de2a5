"""The kernels of an AMD code object, by the metadata that its loader reads."""

from __future__ import annotations

import io
from typing import Any

from .kernel import Kernel

METADATA = 32
"""The type of the note that holds the metadata, as MessagePack."""
NO_READER = "its kernels' registers are in MessagePack: pip install msgpack to have them shown"


def _note(data: bytes) -> bytes:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import NoteSection

    for section in ELFFile(io.BytesIO(data)).iter_sections():
        if isinstance(section, NoteSection):
            for note in section.iter_notes():
                if note["n_name"].startswith("AMD") and note["n_type"] in (METADATA, "NT_AMDGPU_METADATA"):
                    found = note["n_descdata"]
                    return found if isinstance(found, bytes) else bytes(str(found), "latin-1")
    return b""


def _metadata(data: bytes) -> dict[str, Any] | None:
    """What the metadata tells; None where msgpack is not installed. Raises ValueError where it is damaged."""
    try:
        import msgpack
    except ImportError:
        return None
    packed = _note(data)
    try:
        told = msgpack.unpackb(packed) if packed else {}
    except Exception as error:  # its own errors are of several families
        raise ValueError(f"it holds a code object with damaged metadata: {error}") from error
    return told if isinstance(told, dict) else {}


def arch_of(data: bytes) -> str:
    """The architecture that the metadata names, such as gfx942; empty where it cannot be read."""
    target = str((_metadata(data) or {}).get("amdhsa.target", ""))
    return target.rpartition("--")[2] or target.rpartition("-")[2]


def kernels(data: bytes, arch: str) -> tuple[list[Kernel], str]:
    """Every kernel of a code object, and why they could not be read."""
    from elftools.elf.elffile import ELFFile

    told = _metadata(data)
    if told is None:
        return [], NO_READER
    elf = ELFFile(io.BytesIO(data))
    table: Any = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
    sizes = {one.name: one["st_size"] for one in (table.iter_symbols() if table else ())}
    found = []
    for one in told.get("amdhsa.kernels", ()):
        spills = [one[name] for name in (".vgpr_spill_count", ".sgpr_spill_count") if name in one]
        found.append(
            Kernel(
                name=one[".name"],
                arch=arch,
                code=sizes.get(one[".name"], 0),
                registers=one.get(".vgpr_count"),
                shared=one.get(".group_segment_fixed_size"),
                stack=one.get(".private_segment_fixed_size"),
                spills=sum(spills) if spills else None,
                scalar_registers=one.get(".sgpr_count"),
            )
        )
    return sorted(found, key=lambda kernel: kernel.name), ""
