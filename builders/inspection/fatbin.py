"""Reads containers of device code in a library: NVIDIA's fatbin, and clang's bundle for HIP."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

MAGIC = b"\x50\xed\x55\xba"
"""A fatbin: header {magic u32, version u16, header size u16, size u64}, then its parts."""
HEADER, PART = "<IHHQ", "<HHIQIIHHIIIQ"
"""A part: kind, version, header size, size, compressed size, options, minor, major, arch, name (at, size), flags."""
KINDS = {1: "PTX", 2: "SASS"}
ELF = b"\x7fELF\x02\x01"
DEVICE_FILES = {190: "SASS", 224: "HSACO"}
"""The machine in the header of an ELF file -> the kind of device code."""
LZ4, ZSTD, EXACT, FAMILY = 0x2000, 0x8000, 0x10_0000, 0x20_0000
"""Flags of a part: its compression, and whether it is for one chip alone (sm_90a) or for its family (sm_100f)."""
BUNDLE, COMPRESSED_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
HIP = re.compile(r"^hip.*amdgcn-amd-amdhsa-[^-]*-(gfx\S+)$")
CUOBJDUMP_TIMEOUT = 60
"""Seconds."""


class Image(NamedTuple):
    """A piece of device code. `data` is None if it could not be read."""

    kind: str
    """SASS, PTX or HSACO."""
    arch: str
    size: int
    """The size in the file, in bytes."""
    data: bytes | None
    compression: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns everything but the code."""
        return {"kind": self.kind, "arch": self.arch, "size": self.size, "compression": self.compression}


def cuda_images(section: bytes) -> list[Image]:
    """Returns the parts of every fatbin in a section. Raises ValueError if one is truncated."""
    images, at = [], section.find(MAGIC)
    while at >= 0:
        try:
            _magic, _version, header, size = struct.unpack_from(HEADER, section, at)
            part, end = at + header, at + header + size
            while part < end:
                image, length = _part(section, part)
                images.append(image)
                part += length
        except struct.error as error:
            raise ValueError("it holds a truncated fatbin") from error
        at = section.find(MAGIC, end)
    return images


def _part(section: bytes, at: int) -> tuple[Image, int]:
    """Returns the part of a fatbin at an offset, and its length. Raises ValueError if it is truncated."""
    kind, _version, header, size, compressed, _o, _minor, _major, arch, _n, _l, flags = struct.unpack_from(
        PART, section, at
    )
    if not header + size or at + header + size > len(section):
        raise ValueError("it holds a truncated fatbin")
    letter = "a" if flags & EXACT else "f" if flags & FAMILY else ""
    name = f"{'compute' if kind == 1 else 'sm'}_{arch}{letter}"
    compression = "zstd" if flags & ZSTD else "lz4" if flags & LZ4 else ""
    body = section[at + header : at + header + size]
    if compression:
        return Image(KINDS.get(kind, f"kind {kind}"), name, compressed, None, compression), header + size
    start = body.find(b"\x7fELF") if kind == 2 else 0  # parts for newer chips have notes before the code
    return Image(KINDS.get(kind, f"kind {kind}"), name, size, body[max(0, start) :]), header + size


def hip_images(section: bytes) -> tuple[list[Image], str]:
    """Returns the code objects of HIP's bundles, and why some could not be read; empty if all could."""
    images, problem = [], ""
    if COMPRESSED_BUNDLE in section[:4096]:
        problem = "its HIP code is in a compressed bundle, which clang-offload-bundler reads"
    at = section.find(BUNDLE)
    while at >= 0:
        position = at + len(BUNDLE)
        (count,) = struct.unpack_from("<Q", section, position)
        position += 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", section, position)
            triple = section[position + 24 : position + 24 + length].decode(errors="replace")
            position += 24 + length
            arch = HIP.match(triple)
            if arch and size:
                images.append(Image("HSACO", arch[1], size, section[at + offset : at + offset + size]))
        at = section.find(BUNDLE, position)
    return images, problem


def embedded(section: bytes) -> list[tuple[str, bytes]]:
    """Returns ("SASS" or "HSACO", code) of each device file that a section of data contains unchanged."""
    files = []
    at = section.find(ELF)
    while at >= 0:
        kind = DEVICE_FILES.get(int.from_bytes(section[at + 18 : at + 20], "little"))
        end = at + len(ELF)
        if kind and len(section) >= at + 64:
            # The tables of segments and of sections are at the end of such a file.
            segments, sections = struct.unpack_from("<QQ", section, at + 32)
            segment, segment_count, entry, count = struct.unpack_from("<HHHH", section, at + 54)
            length = max(segments + segment * segment_count, sections + entry * count)
            if sections and at + length <= len(section):
                end = at + length
                files.append((kind, section[at:end]))
        at = section.find(ELF, end)
    return files


def ptx_arch(text: bytes) -> str:
    """Returns the architecture that a PTX text names, as compute_90; empty if there is none."""
    match = re.search(rb"^\s*\.target\s+sm_(\w+)", text, re.MULTILINE)
    return f"compute_{match[1].decode()}" if match else ""


def find_cuobjdump() -> str | None:
    """Returns the path of NVIDIA's cuobjdump, or None if there is none.

    It is on PATH, in a CUDA toolkit, or in Triton's wheel, which is not imported.
    """
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    paths = [os.path.join(home, "bin", "cuobjdump") for home in homes if home]
    spec = importlib.util.find_spec("triton")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    paths += [os.path.join(folder, "backends", "nvidia", "bin", "cuobjdump") for folder in folders]
    return shutil.which("cuobjdump") or next((path for path in paths if os.access(path, os.X_OK)), None)


def expand(path: str, images: Sequence[Image], notes: list[str]) -> list[Image]:
    """Returns the images with the code of compressed SASS, which cuobjdump reads from the file `path`.

    If it is not installed or fails, the images are returned as they are, and `notes` gets the reason.
    """
    compressed = [image for image in images if image.kind == "SASS" and image.data is None]
    if not compressed:
        return list(images)
    tool = find_cuobjdump()
    if tool is None:
        names = ", ".join(sorted({image.arch for image in compressed}))
        notes.append(
            f"the code for {names} is compressed, and there is no cuobjdump to read its kernels:"
            " install the CUDA toolkit, or pip install triton, which contains it"
        )
        return list(images)
    with tempfile.TemporaryDirectory(prefix="opforge-inspect-") as folder:
        command = [tool, "--extract-elf", "all", os.path.abspath(path)]
        try:
            process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=CUOBJDUMP_TIMEOUT)
            status = process.returncode
            problem = (process.stderr.strip() or f"it ended with {status}") if status else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            notes.append(f"{tool} could not read the compressed code: {problem}")
            return list(images)
        by_arch: dict[str, list[bytes]] = {}
        for name in sorted(os.listdir(folder)):
            match = re.search(r"\.(sm_\w+)\.cubin$", name)
            with open(os.path.join(folder, name), "rb") as file:
                by_arch.setdefault(match[1] if match else "", []).append(file.read())
    # It extracts the uncompressed ones too: those of an architecture are all replaced by what it extracted.
    kept = [
        image for image in images if image not in compressed and not (image.kind == "SASS" and image.arch in by_arch)
    ]
    compressions = {image.arch: image.compression for image in compressed}
    extracted = ((arch, data) for arch, parts in by_arch.items() for data in parts)
    return kept + [Image("SASS", arch, len(data), data, compressions.get(arch, "")) for arch, data in extracted]
