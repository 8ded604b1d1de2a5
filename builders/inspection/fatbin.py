"""Reads containers of device code in a library: NVIDIA's fatbin, clang's bundle for HIP, and files as they are."""

from __future__ import annotations

import re
import struct

from . import cubin, elf_file, hsaco
from .image import Image
from .reader import Reader

MAGIC = b"\x50\xed\x55\xba"
HEADER, PART = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHIIIQ")
"""A fatbin's header: magic, version, header size, size. Then its parts: kind, version, header size, size, compressed
size, options, minor, major, arch, name (at, size), flags."""
KINDS = {1: "PTX", 2: "SASS"}
ELF = elf_file.MAGIC + elf_file.FORM
DEVICE_FILES = {elf_file.CUDA: "SASS", elf_file.AMDGPU: "HSACO"}
"""The machine that an ELF file is for -> the kind of device code."""
LZ4, ZSTD, EXACT, FAMILY = 0x2000, 0x8000, 0x10_0000, 0x20_0000
"""Flags of a part: its compression, and whether it is for one chip alone (sm_90a) or for its family (sm_100f)."""
BUNDLE, COMPRESSED_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
COUNT, OBJECT = struct.Struct("<Q"), struct.Struct("<QQQ")
"""A bundle's number of code objects, and of each its offset, its size, and the length of its triple."""
HIP = re.compile(r"hip.*amdgcn-amd-amdhsa-[^-]*-(gfx\S+)")
MAX_TRIPLE = 1024
TARGET = re.compile(rb"^[ \t]*\.target[ \t]+sm_(\w{1,64})", re.MULTILINE)
COMPRESSED_NOTE = "its HIP code is in a compressed bundle, which clang-offload-bundler reads"


def cuda_images(section: Reader) -> list[Image]:
    """Returns the parts of every fatbin in a section. Raises FileFormatError if one is damaged."""
    images, at = [], section.find(MAGIC)
    while at >= 0:
        _magic, _version, header, size = section.unpack(HEADER, at, "the header of a fatbin")
        if header < HEADER.size:
            raise section.damaged(f"the header of the fatbin at byte {at} has {header} bytes, not {HEADER.size}")
        parts = section.part(at + header, size, "a fatbin")
        position = 0
        while position < len(parts):
            image, length = _part(parts, position)
            images.append(image)
            position += length
        at = section.find(MAGIC, at + header + size)
    return images


def _part(fatbin: Reader, at: int) -> tuple[Image, int]:
    """Returns the part of a fatbin at a position, and its length."""
    kind, _version, header, size, compressed, _options, _minor, _major, arch, _at, _size, flags = fatbin.unpack(
        PART, at, "the header of a part"
    )
    if header < PART.size:
        raise fatbin.damaged(f"the header of a part has {header} bytes, not {PART.size} or more")
    letter = "a" if flags & EXACT else "f" if flags & FAMILY else ""
    name = f"{'compute' if kind == 1 else 'sm'}_{arch}{letter}"
    code, label = fatbin.part(at + header, size, f"the code for {name}"), KINDS.get(kind, f"kind {kind}")
    compression = "zstd" if flags & ZSTD else "lz4" if flags & LZ4 else ""
    if compression:
        return Image(label, name, compressed, None, compression), header + size
    start = max(0, code.find(ELF)) if kind == 2 else 0  # parts for newer chips have notes before the code
    return Image(label, name, size, code.part(start, size - start, code.name)), header + size


def hip_images(section: Reader) -> tuple[list[Image], str]:
    """Returns the code objects of HIP's bundles, and why some could not be read; empty if all could.

    Raises FileFormatError if a bundle is damaged.
    """
    images = []
    problem = COMPRESSED_NOTE if 0 <= section.find(COMPRESSED_BUNDLE) < 4096 else ""
    at = section.find(BUNDLE)
    while at >= 0:
        position = at + len(BUNDLE)
        (count,) = section.unpack(COUNT, position, "the header of a bundle")
        position += COUNT.size
        for _ in range(count):
            offset, size, length = section.unpack(OBJECT, position, "the list of a bundle's code objects")
            if length > MAX_TRIPLE:
                raise section.damaged(f"the name of a code object has {length} bytes, more than {MAX_TRIPLE}")
            position += OBJECT.size
            triple = section.content(position, length, "the name of a code object").decode(errors="replace")
            position += length
            arch = HIP.fullmatch(triple)
            if arch and size:
                code = section.part(at + offset, size, f"the code object for {arch[1]}")
                images.append(Image("HSACO", arch[1], size, code))
        at = section.find(BUNDLE, position)
    return images, problem


def device_file(kind: str, code: Reader) -> Image:
    """Returns the image of a SASS or HSACO file that is in no container. Raises FileFormatError if it is damaged."""
    arch = cubin.arch_of(code) if kind == "SASS" else hsaco.arch_of(code)
    return Image(kind, arch, len(code), code, is_bare=True)


def embedded(section: Reader) -> list[Image]:
    """Returns each device file that a section of data contains unchanged. Raises FileFormatError if one is damaged."""
    images = []
    at = section.find(ELF)
    while at >= 0:
        end = at + len(ELF)
        if at + elf_file.HEADER.size <= len(section):
            _abi, _type, machine, _version, _entry, segments, sections, _flags, *sizes = section.unpack(
                elf_file.HEADER, at, "a header"
            )
            _size, segment, segment_count, entry, count, _names = sizes
            kind = DEVICE_FILES.get(elf_file.MACHINES.get(machine, ""))
            # The tables of segments and of sections are at the end of such a file.
            length = max(segments + segment * segment_count, sections + entry * count)
            if kind and sections and at + length <= len(section):
                end = at + length
                images.append(device_file(kind, section.part(at, length, f"the {kind} file at byte {at}")))
        at = section.find(ELF, end)
    return images


def ptx_arch(text: Reader) -> str:
    """Returns the architecture that a PTX text names, as compute_90; empty if there is none."""
    match = TARGET.search(text.content(0, len(text), "the text"))
    return f"compute_{match[1].decode()}" if match else ""
