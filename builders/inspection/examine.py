"""Shows what is inside a built file: host code, device code by architecture and kernel, and what loading it needs.

`examine` reads the file itself. What it cannot read (compressed device code without NVIDIA's cuobjdump) is named in
`notes`, never guessed.
"""

from __future__ import annotations

import os
from typing import Any

from . import cubin, fatbin, host, hsaco, shims
from .kernel import Kernel

CUDA_MACHINE, AMD_MACHINE = "EM_CUDA", "EM_AMDGPU"
UNKNOWN_SPILLS = "if no spills are shown, the stack may hold spilled registers or arrays: the file does not say which"


def examine(path: str) -> dict[str, Any]:
    """Returns what a library, a cubin, an HSACO, a fatbin or a PTX file holds, JSON-able.

    `path`; `kind`; `size` in bytes; `images`: each piece of device code with kind (SASS, PTX, HSACO), arch, size,
    compression; `kernels`: see `Kernel`; for host code `machine`, `exports`, `needs`, `floors`, `functions`, `shims`;
    `notes`: what could not be read. Raises OSError, and ValueError if the file is none of these.
    """
    with open(path, "rb") as file:
        data = file.read()
    report: dict[str, Any] = {"path": path, "size": len(data), "images": [], "kernels": [], "notes": []}
    images: list[fatbin.Image] = []
    if data[:4] == b"\x7fELF":
        machine, sections = host.sections(data)
        if machine == "EM_NONE":
            raise ValueError(f"{path} is not a library: its header names no machine")
        if machine == CUDA_MACHINE:
            images = [_device_file("SASS", data)]
        elif machine == AMD_MACHINE:
            images = [_device_file("HSACO", data)]
        else:
            images = [*fatbin.cuda_images(sections.get(".nv_fatbin", b"")), *_hip_images(sections, report["notes"])]
            plain = [sections.get(name, b"") for name in (".rodata", ".data")]
            images += [_device_file(kind, code) for section in plain for kind, code in fatbin.embedded(section)]
            report |= host.host_code(path, data)
            report["shims"] = shims.torch_floor(report["undefined"])
            del report["undefined"]
        report["kind"] = {CUDA_MACHINE: "cubin", AMD_MACHINE: "HSACO"}.get(machine, "library")
    elif data[:4] == fatbin.MAGIC:
        report["kind"], images = "fatbin", fatbin.cuda_images(data)
    elif b".version" in data[:4096] and b".target" in data[:4096]:
        report["kind"], images = "PTX", [fatbin.Image("PTX", fatbin.ptx_arch(data), len(data), data)]
    else:
        raise ValueError(f"{path} is not a library, a cubin, an HSACO, a fatbin or a PTX file")
    images = fatbin.expand(path, images, report["notes"])
    report["images"] = [image.to_json() for image in images]
    kernels = [kernel for image in images if image.data is not None for kernel in _kernels(image, report["notes"])]
    report["kernels"] = [kernel._asdict() for kernel in kernels]
    if any(kernel.stack and kernel.spills is None for kernel in kernels):
        report["notes"].append(UNKNOWN_SPILLS)
    return report


def _device_file(kind: str, code: bytes) -> fatbin.Image:
    """Returns the image of a device file that is in no container."""
    arch = cubin.arch_of(code) if kind == "SASS" else hsaco.arch_of(code)
    return fatbin.Image(kind, arch, len(code), code)


def _hip_images(sections: dict[str, bytes], notes: list[str]) -> list[fatbin.Image]:
    images, problem = fatbin.hip_images(sections.get(".hip_fatbin", b""))
    if problem:
        notes.append(problem)
    return images


def _kernels(image: fatbin.Image, notes: list[str]) -> list[Kernel]:
    """Returns the kernels of an image, or none if its kind has none to read; `notes` gets what could not be read."""
    assert image.data is not None
    if image.kind == "SASS":
        return cubin.kernels(image.data, image.arch)
    if image.kind == "HSACO":
        kernels, problem = hsaco.kernels(image.data, image.arch)
        if problem and problem not in notes:
            notes.append(problem)
        return kernels
    return []


def inspectable_files(folder: str) -> list[str]:
    """Returns the paths of an entry's files that `examine` may read: all but its manifest."""
    names = sorted(name for name in os.listdir(folder) if not name.endswith(".json"))
    return [os.path.join(folder, name) for name in names if os.path.isfile(os.path.join(folder, name))]
