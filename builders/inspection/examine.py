"""Examines a built file: host code, device code by architecture and kernel, and the requirements for loading it.

`examine` reads the file itself. What it cannot read (compressed device code without NVIDIA's cuobjdump) is named in
`notes`, never guessed. The file may be damaged, or made by somebody who wants to harm the reader: every part is read by
a `Reader`, within the file's bounds and with a limit on the work.
"""

from __future__ import annotations

import os
from typing import Any

from opforge.foundation.files import read_file

from . import cubin, cuobjdump, elf_file, fatbin, hsaco, shims
from .elf import MAX_BYTES, host_code
from .elf_file import ElfFile
from .image import Image
from .kernel import Kernel
from .launched_names import launched_names
from .reader import FileFormatError, Reader

HEAD = 4096
"""The number of bytes at the beginning of a file that decide its format."""
DATA_SECTIONS = (".rodata", ".data")
"""Where a library may have device files that are in no container."""
UNKNOWN_SPILLS = "if no spills are shown, the stack may hold spilled registers or arrays: the file does not say which"


def examine(path: str) -> dict[str, Any]:
    """Returns the content of a library, a cubin, an HSACO, a fatbin, a bundle or a PTX file, for JSON.

    `path`; `kind`; `size` in bytes; `images`: each piece of device code with kind (SASS, PTX, HSACO), arch, size,
    compression, and whether it is a bare file, in no container; `kernels`: see `Kernel`; for host code `machine`,
    `exports`, `needs`, `floors`, `functions`, `shims`; `notes`: what could not be read. Raises OSError, and
    FileFormatError if the file is damaged or none of these.
    """
    return examine_content(path, read_file(path, MAX_BYTES))


def examine_content(path: str, content: bytes) -> dict[str, Any]:
    """Returns the result of `examine` for a file's content. Raises FileFormatError."""
    kind, file, notes = kind_of(content[:HEAD]), Reader(content, path), list[str]()
    report: dict[str, Any] = {"path": path, "kind": kind, "size": len(content), "notes": notes}
    images: list[Image] = []
    if kind == "ELF":
        elf = ElfFile(file)
        report["kind"], device = {
            elf_file.CUDA: ("cubin", "SASS"),
            elf_file.AMDGPU: ("HSACO", "HSACO"),
        }.get(elf.machine, ("library", ""))
        if device:
            images = [fatbin.device_file(device, file)]
        elif elf.machine == "none":
            raise FileFormatError(f"{path} is not a library: its header names no machine")
        else:
            images = _library_images(elf, notes)
            report |= host_code(elf)
            report["shims"] = shims.torch_floor(report["shims"])
    elif kind == "fatbin":
        images = fatbin.cuda_images(file)
    elif kind == "bundle":
        images = _hip_images(file, notes)
    elif kind == "PTX":
        images = [Image("PTX", fatbin.ptx_arch(file), len(file), file)]
    else:
        raise FileFormatError(f"{path} is not a library, a cubin, an HSACO, a fatbin, a bundle or a PTX file")
    images = cuobjdump.expand(path, images, notes)
    kernels = [kernel for image in images for kernel in _kernels(image)]
    if any(kernel.stack and kernel.spills is None for kernel in kernels):
        notes.append(UNKNOWN_SPILLS)
    return {
        **report,
        "images": [image.to_json() for image in images],
        "kernels": [kernel._asdict() for kernel in kernels],
    }


def kind_of(head: bytes) -> str:
    """Returns the kind of a file by its first bytes: ELF, fatbin, bundle or PTX; empty if it is none of these."""
    if head.startswith(elf_file.MAGIC):
        return "ELF"
    if head.startswith(fatbin.MAGIC):
        return "fatbin"
    if head.startswith((fatbin.BUNDLE, fatbin.COMPRESSED_BUNDLE)):
        return "bundle"
    return "PTX" if b".version" in head and b".target" in head else ""


def _library_images(elf: ElfFile, notes: list[str]) -> list[Image]:
    sections = elf.sections
    images = fatbin.cuda_images(elf.content(sections.get(".nv_fatbin")))
    images += _hip_images(elf.content(sections.get(".hip_fatbin")), notes)
    names = launched_names(elf)
    for name in DATA_SECTIONS:
        bare = fatbin.embedded(elf.content(sections.get(name)))
        images += [image._replace(name=names.get(image.code.start, "")) if image.code else image for image in bare]
    return images


def _hip_images(section: Reader, notes: list[str]) -> list[Image]:
    images, problem = fatbin.hip_images(section)
    if problem:
        notes.append(problem)
    return images


def _kernels(image: Image) -> list[Kernel]:
    """Returns the kernels of an image; none if its kind has none to read, or if it is compressed."""
    read = {"SASS": cubin.kernels, "HSACO": hsaco.kernels}.get(image.kind)
    found = read(image.code, image.arch) if read and image.code is not None else []
    return [kernel._replace(launched=image.name) for kernel in found]


def inspectable_files(folder: str) -> list[str]:
    """Returns the paths of a folder's files that `examine` reads, by how they begin. Raises OSError."""
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not name.endswith(".json")]
    return [path for path in paths if os.path.isfile(path) and kind_of(_head(path))]


def _head(path: str) -> bytes:
    # Without O_NONBLOCK a pipe that has just been put in the file's place would block for ever.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(handle, HEAD)
    finally:
        os.close(handle)
