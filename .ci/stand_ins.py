"""Libraries in the place of NVIDIA's, for a torch that is built for CUDA, on a machine without a device.

NVIDIA's libraries take 3 GB, and without a device torch calls no function of them but those of the CUDA runtime, which
stays the real one. A stand-in has the name of a library, and its functions that torch names. Each returns 100, which
is `cudaErrorNoDevice`.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence

from packaging.requirements import Requirement

FROM_NVIDIA = re.compile(r"lib(cu|nccl|nv)")
OF_THE_DRIVER = "libcuda.so"
"""A machine without a device has none, so none is made."""
FUNCTION = re.compile(r"_*(cu|nccl|nv)")
RUNTIME = "nvidia-cuda-runtime"


def spare_requirements(metadata: str) -> None:
    """Takes NVIDIA's packages, but for the CUDA runtime, out of a package's file METADATA."""
    with open(metadata, encoding="utf-8") as file:
        lines = file.read().split("\n")
    kept = []
    for line in lines:
        field, _, text = line.partition(": ")
        if field == "Requires-Dist":
            requirement = Requirement(text)
            if requirement.name == "cuda-toolkit":
                requirement.extras = {"cudart"}
                line = f"{field}: {requirement}"
            elif requirement.name.startswith("nvidia-") and not requirement.name.startswith(RUNTIME):
                continue
        kept.append(line)
    with open(metadata, "w", encoding="utf-8") as file:
        file.write("\n".join(kept))


def make(folder: str, runtime: str) -> list[str]:
    """Makes the libraries that those of a folder need, in it. Returns their names.

    Args:
        folder: That of torch's libraries.
        runtime: A folder below which the real CUDA runtime lies.
    """
    libraries = sorted(glob.glob(f"{folder}/*.so*"))
    real = glob.glob(f"{runtime}/**/*.so*", recursive=True)
    present = {os.path.basename(path) for path in [*libraries, *real]}
    wanted = {name for path in libraries for name in needed(path) if FROM_NVIDIA.match(name)}
    missing = sorted(name for name in wanted - present if not name.startswith(OF_THE_DRIVER))
    functions = undefined([*libraries, *real])
    versions: dict[str, set[str]] = {}
    for path in libraries:
        for name, names in needed_versions(path).items():
            versions.setdefault(name, set()).update(names)
    for name in missing:
        own = versions.get(name, set())
        _make(os.path.join(folder, name), {pair for pair in functions if not pair[1] or pair[1] in own}, sorted(own))
    return missing


def needed(path: str) -> list[str]:
    """Returns the names of the libraries that a library needs."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _run(["readelf", "-dW", path]))


def needed_versions(path: str) -> dict[str, set[str]]:
    """Returns the versions of symbols that a library needs, by the names of the libraries that have them."""
    found: dict[str, set[str]] = {}
    section = _run(["readelf", "-VW", path]).partition("Version needs section")[2]
    names: set[str] = set()
    for file, version in re.findall(r"File: (\S+)|Name: (\S+)", section):
        if file:
            names = found.setdefault(file, set())
        else:
            names.add(version)
    return found


def undefined(libraries: Iterable[str]) -> set[tuple[str, str]]:
    """Returns NVIDIA's functions that libraries call and none of them defines, each with its version, or ""."""
    called, defined = set(), set()
    for path in libraries:
        for line in _run(["nm", "-D", path]).splitlines():
            *_, kind, symbol = line.split()
            name, _, version = symbol.replace("@@", "@").partition("@")
            if FUNCTION.match(name):
                (called if kind in "Uw" else defined).add((name, version))
    own = {name for name, _ in defined}
    return {(name, version) for name, version in called if version or name not in own}


def _make(path: str, functions: Iterable[tuple[str, str]], versions: Sequence[str]) -> None:
    names = sorted({name for name, _ in functions})
    labels = "\n".join(f".globl {name}\n.type {name}, @function\n{name}:" for name in names)
    groups = [(version, sorted(name for name, of in functions if of == version)) for version in versions]
    script = "\n".join(f"{version} {{ global: {' '.join(f'{name};' for name in own)} }};" for version, own in groups)
    with tempfile.TemporaryDirectory() as folder:
        source, map_file = os.path.join(folder, "library.s"), os.path.join(folder, "library.map")
        with open(source, "w", encoding="utf-8") as file:
            file.write(f'.text\n{labels}\n mov $100, %eax\n ret\n.section .note.GNU-stack,"",@progbits\n')
        with open(map_file, "w", encoding="utf-8") as file:
            file.write(script.replace("global:  }", "}"))
        options = [f"-Wl,-soname,{os.path.basename(path)}", *([f"-Wl,--version-script={map_file}"] if versions else [])]
        _run(["g++", "-shared", "-nostdlib", source, "-o", path, *options])


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
