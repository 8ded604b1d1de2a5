"""What is inside a built file: host code, device code by architecture and kernel, and what loading it needs.

`examine` reads the file itself. What it cannot read (device code that was compressed, without NVIDIA's cuobjdump) is
said in `notes`, never guessed.
"""

from __future__ import annotations

import os
from typing import Any

from . import cubin, fatbin, host, hsaco, shims
from .kernel import Kernel

CUDA_MACHINE, AMD_MACHINE = "EM_CUDA", "EM_AMDGPU"
UNTOLD = "where spills are not told, the stack may hold spilt registers or arrays: the file does not say which"


def examine(path: str) -> dict[str, Any]:
    """What a library, a cubin, an HSACO, a fatbin or a PTX file holds, JSON-able.

    `kind`; `size` in bytes; `images`: each piece of device code with kind (SASS, PTX, HSACO), arch, size, compression;
    `kernels`: see `Kernel`; for host code `machine`, `exports`, `needs`, `floors`, `functions`, `shims`; `notes`.
    Raises OSError, and ValueError where the file is none of these.
    """
    with open(path, "rb") as file:
        data = file.read()
    told: dict[str, Any] = {"path": path, "size": len(data), "images": [], "kernels": [], "notes": []}
    images: list[fatbin.Image] = []
    if data[:4] == b"\x7fELF":
        machine, sections = host.sections(data)
        if machine == "EM_NONE":
            raise ValueError(f"{path} is no library: its head names no machine")
        if machine == CUDA_MACHINE:
            images = [_image("SASS", data)]
        elif machine == AMD_MACHINE:
            images = [_image("HSACO", data)]
        else:
            images = [*fatbin.cuda_images(sections.get(".nv_fatbin", b"")), *_hip(sections, told["notes"])]
            plain = [sections.get(name, b"") for name in (".rodata", ".data")]
            images += [_image(kind, code) for section in plain for kind, code in fatbin.embedded(section)]
            told |= host.host_code(path, data)
            told["shims"] = shims.torch_floor(told["undefined"])
            del told["undefined"]
        told["kind"] = {CUDA_MACHINE: "cubin", AMD_MACHINE: "HSACO"}.get(machine, "library")
    elif data[:4] == fatbin.MAGIC:
        told["kind"], images = "fatbin", fatbin.cuda_images(data)
    elif b".version" in data[:4096] and b".target" in data[:4096]:
        told["kind"], images = "PTX", [fatbin.Image("PTX", fatbin.ptx_arch(data), len(data), data)]
    else:
        raise ValueError(f"{path} is no library, cubin, HSACO, fatbin or PTX file")
    images = fatbin.expand(path, images, told["notes"])
    told["images"] = [one.told() for one in images]
    kernels: list[Kernel] = []
    for one in images:
        if one.data is not None:
            kernels += _kernels(one, told["notes"])
    told["kernels"] = [one._asdict() for one in kernels]
    if any(one.stack and one.spills is None for one in kernels):
        told["notes"].append(UNTOLD)
    return told


def _image(kind: str, code: bytes) -> fatbin.Image:
    """A device file that stands by itself."""
    arch = cubin.arch_of(code) if kind == "SASS" else hsaco.arch_of(code)
    return fatbin.Image(kind, arch, len(code), code)


def _hip(sections: dict[str, bytes], notes: list[str]) -> list[fatbin.Image]:
    images, problem = fatbin.hip_images(sections.get(".hip_fatbin", b""))
    if problem:
        notes.append(problem)
    return images


def _kernels(image: fatbin.Image, notes: list[str]) -> list[Kernel]:
    assert image.data is not None
    if image.kind == "SASS":
        return cubin.kernels(image.data, image.arch)
    if image.kind == "HSACO":
        found, problem = hsaco.kernels(image.data, image.arch)
        if problem and problem not in notes:
            notes.append(problem)
        return found
    return []


def inspectable_files(folder: str) -> list[str]:
    """The files of an entry's folder that `examine` may read, its manifest apart."""
    names = sorted(name for name in os.listdir(folder) if not name.endswith(".json"))
    return [os.path.join(folder, name) for name in names if os.path.isfile(os.path.join(folder, name))]
