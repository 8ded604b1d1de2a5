"""The names by which a Triton op's library launches its images: several have one symbol, as a function's dtypes do.

The section `opforge_images` has a pointer to each image's `opforge_image` (include/opforge/kernel_image.h). Before a
library is loaded, its pointers are in the relocations.
"""

from __future__ import annotations

import struct

from .elf_file import ElfFile

TABLE, RELOCATIONS = "opforge_images", ".rela.dyn"
RELOCATION = struct.Struct("<QQq")
RELATIVE = {"x86_64": 8, "aarch64": 1027}
"""Machine -> the type of a relocation to an address of the library itself."""
POINTER, DATA = 8, 24
"""Bytes of a pointer, and the place of the pointer to the image's bytes; that to its name is the first."""


def launched_names(elf: ElfFile) -> dict[int, str]:
    """Returns the name of each image by its position in the file. Raises FileFormatError if the file is damaged."""
    section = elf.sections.get(TABLE)
    if section is None:
        return {}
    rows, kind = elf.content(elf.sections.get(RELOCATIONS)), RELATIVE.get(elf.machine)
    table = rows.content(0, len(rows) // RELOCATION.size * RELOCATION.size, "its relocations")
    pointers = {at: to for at, info, to in RELOCATION.iter_unpack(table) if info == kind}
    names = dict[int, str]()
    for at in range(0, len(elf.content(section)), POINTER):
        image = pointers.get(section.address + at, 0)
        name, data = elf.position(pointers.get(image, 0)), elf.position(pointers.get(image + DATA, 0))
        if name is not None and data is not None:
            names[data] = elf.text(name)
    return names
