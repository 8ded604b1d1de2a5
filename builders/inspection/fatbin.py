"""Containers of device code inside a library: NVIDIA's fatbin, and the bundle of clang's HIP."""

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
"""A part: kind, version, header size, size, compressed size, options, minor, major, arch, name (place, size), flags."""
KINDS = {1: "PTX", 2: "SASS"}
ELF = b"\x7fELF\x02\x01"
DEVICE_FILES = {190: "SASS", 224: "HSACO"}
"""The machine in the head of an ELF file -> what it is."""
LZ4, ZSTD, EXACT, FAMILY = 0x2000, 0x8000, 0x10_0000, 0x20_0000
"""Flags of a part: how it is compressed, and that it is for one chip alone (sm_90a) or for its family (sm_100f)."""
BUNDLE, COMPRESSED_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
HIP = re.compile(r"^hip.*amdgcn-amd-amdhsa-[^-]*-(gfx\S+)$")
SECONDS = 60


class Image(NamedTuple):
    """A piece of device code. `data` is None where it could not be read."""

    kind: str
    """SASS, PTX or HSACO."""
    arch: str
    size: int
    """Bytes in the file."""
    data: bytes | None
    compression: str = ""

    def told(self) -> dict[str, Any]:
        """All but the code itself."""
        return {"kind": self.kind, "arch": self.arch, "size": self.size, "compression": self.compression}


def cuda_images(section: bytes) -> list[Image]:
    """The parts of every fatbin in a section. Raises ValueError where one is cut short."""
    found, at = [], section.find(MAGIC)
    while at >= 0:
        try:
            _magic, _version, header, size = struct.unpack_from(HEADER, section, at)
            part, end = at + header, at + header + size
            while part < end:
                image, length = _part(section, part)
                found.append(image)
                part += length
        except struct.error as error:
            raise ValueError("it holds a fatbin that is cut short") from error
        at = section.find(MAGIC, end)
    return found


def _part(section: bytes, at: int) -> tuple[Image, int]:
    kind, _version, header, size, compressed, _o, _minor, _major, arch, _n, _l, flags = struct.unpack_from(
        PART, section, at
    )
    if not header + size or at + header + size > len(section):
        raise ValueError("it holds a fatbin that is cut short")
    letter = "a" if flags & EXACT else "f" if flags & FAMILY else ""
    name = f"{'compute' if kind == 1 else 'sm'}_{arch}{letter}"
    how = "zstd" if flags & ZSTD else "lz4" if flags & LZ4 else ""
    body = section[at + header : at + header + size]
    if how:
        return Image(KINDS.get(kind, f"kind {kind}"), name, compressed, None, how), header + size
    start = body.find(b"\x7fELF") if kind == 2 else 0  # a part for newer chips has notes before the code
    return Image(KINDS.get(kind, f"kind {kind}"), name, size, body[max(0, start) :]), header + size


def hip_images(section: bytes) -> tuple[list[Image], str]:
    """The code objects of HIP's bundles, and why some could not be read."""
    found, problem = [], ""
    if COMPRESSED_BUNDLE in section[:4096]:
        problem = "its HIP code is in a compressed bundle, which clang-offload-bundler reads"
    at = section.find(BUNDLE)
    while at >= 0:
        place = at + len(BUNDLE)
        (count,) = struct.unpack_from("<Q", section, place)
        place += 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", section, place)
            triple = section[place + 24 : place + 24 + length].decode(errors="replace")
            place += 24 + length
            arch = HIP.match(triple)
            if arch and size:
                found.append(Image("HSACO", arch[1], size, section[at + offset : at + offset + size]))
        at = section.find(BUNDLE, place)
    return found, problem


def embedded(section: bytes) -> list[tuple[str, bytes]]:
    """("SASS" or "HSACO", code) of each device file that was put into a section of data as it is."""
    found = []
    at = section.find(ELF)
    while at >= 0:
        kind = DEVICE_FILES.get(int.from_bytes(section[at + 18 : at + 20], "little"))
        end = at + len(ELF)
        if kind and len(section) >= at + 64:
            # The tables of segments and of sections come last in such a file.
            segments, sections = struct.unpack_from("<QQ", section, at + 32)
            segment, segment_count, one, count = struct.unpack_from("<HHHH", section, at + 54)
            length = max(segments + segment * segment_count, sections + one * count)
            if sections and at + length <= len(section):
                end = at + length
                found.append((kind, section[at:end]))
        at = section.find(ELF, end)
    return found


def ptx_arch(text: bytes) -> str:
    """The architecture that a PTX text names."""
    named = re.search(rb"^\s*\.target\s+sm_(\w+)", text, re.MULTILINE)
    return f"compute_{named[1].decode()}" if named else ""


def find_cuobjdump() -> str | None:
    """NVIDIA's reader: on PATH, in a CUDA toolkit, or in Triton's wheel, which is not imported."""
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    places = [os.path.join(home, "bin", "cuobjdump") for home in homes if home]
    spec = importlib.util.find_spec("triton")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    places += [os.path.join(folder, "backends", "nvidia", "bin", "cuobjdump") for folder in folders]
    return shutil.which("cuobjdump") or next((one for one in places if os.access(one, os.X_OK)), None)


def expand(path: str, images: Sequence[Image], notes: list[str]) -> list[Image]:
    """The images, with compressed SASS read by cuobjdump; a note where there is none, or where it fails."""
    closed = [one for one in images if one.kind == "SASS" and one.data is None]
    if not closed:
        return list(images)
    tool = find_cuobjdump()
    if tool is None:
        names = ", ".join(sorted({one.arch for one in closed}))
        notes.append(
            f"the code for {names} is compressed, and there is no cuobjdump to read its kernels:"
            " install the CUDA toolkit, or pip install triton, which brings it"
        )
        return list(images)
    with tempfile.TemporaryDirectory(prefix="opforge-inspect-") as folder:
        command = [tool, "--extract-elf", "all", os.path.abspath(path)]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
            problem = (done.stderr.strip() or f"it ended with {done.returncode}") if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            notes.append(f"{tool} could not read the compressed code: {problem}")
            return list(images)
        by_arch: dict[str, list[bytes]] = {}
        for name in sorted(os.listdir(folder)):
            named = re.search(r"\.(sm_\w+)\.cubin$", name)
            with open(os.path.join(folder, name), "rb") as file:
                by_arch.setdefault(named[1] if named else "", []).append(file.read())
    # It extracts those that were open already too: what it found of an architecture takes the place of all of them.
    kept = [one for one in images if one not in closed and not (one.kind == "SASS" and one.arch in by_arch)]
    sizes = {one.arch: one for one in closed}
    for arch, parts in by_arch.items():
        for data in parts:
            how = sizes[arch].compression if arch in sizes else ""
            kept.append(Image("SASS", arch, len(data), data, how))
    return kept
