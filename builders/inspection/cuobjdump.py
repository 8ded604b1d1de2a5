"""Extracts compressed device code from a fatbin, by NVIDIA's cuobjdump."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

from opforge.builders.declaration.machine import package_folder
from opforge.foundation.files import read_file

from .image import Image
from .reader import Reader

TIMEOUT = 60
"""Seconds."""
MAX_MEMORY, MAX_EXTRACTED = 8 << 30, 1 << 30
"""Bytes that cuobjdump may use, and that it may extract: a damaged or hostile file may ask for any number."""
MAX_MESSAGE = 2000
"""Bytes of its output that are shown if it fails."""
CUBIN = re.compile(r"\.(sm_\w+)\.cubin$")


def find_cuobjdump() -> str | None:
    """Returns the path of NVIDIA's cuobjdump, or None if there is none.

    It is on PATH, in a CUDA toolkit, or in Triton's wheel, which is not imported.
    """
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    paths = [os.path.join(home, "bin", "cuobjdump") for home in homes if home]
    triton = package_folder("triton")
    paths += [os.path.join(triton, "backends", "nvidia", "bin", "cuobjdump")] if triton else []
    return shutil.which("cuobjdump") or next((path for path in paths if os.access(path, os.X_OK)), None)


def expand(path: str, images: Sequence[Image], notes: list[str]) -> list[Image]:
    """Returns the images with the code of compressed SASS, which cuobjdump reads from the file `path`.

    If it is not installed or fails, the images are returned as they are, and `notes` gets the reason.
    """
    compressed = [image for image in images if image.kind == "SASS" and image.code is None]
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
        try:
            problem = _extract(tool, path, folder)
            extracted = [] if problem else _extracted(folder)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            problem = str(error)
    if problem:
        notes.append(f"{tool} could not read the compressed code: {problem}")
        return list(images)
    # It extracts the uncompressed ones too: those of an architecture are all replaced by what it extracted.
    archs = {arch for arch, _code in extracted}
    kept = [image for image in images if image not in compressed and not (image.kind == "SASS" and image.arch in archs)]
    compressions = {image.arch: image.compression for image in compressed}
    return kept + [Image("SASS", arch, len(code), code, compressions.get(arch, "")) for arch, code in extracted]


def _extract(tool: str, path: str, folder: str) -> str:
    """Extracts the SASS of a file into a folder. Returns why it failed, or an empty text."""
    command = [tool, "--extract-elf", "all", os.path.abspath(path)]
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=messages
        )
        try:
            _limit(process.pid)
            status = process.wait(TIMEOUT)
        finally:
            process.kill()
            process.wait()
        messages.seek(0)
        text = messages.read(MAX_MESSAGE).decode(errors="replace").strip()
    return (text or f"it ended with {status}") if status else ""


def _limit(process: int) -> None:
    """Limits what a process may use. It has only just started: it has read nothing of the file yet."""
    import resource

    if hasattr(resource, "prlimit"):  # on Linux
        try:
            resource.prlimit(process, resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
            resource.prlimit(process, resource.RLIMIT_FSIZE, (MAX_EXTRACTED, MAX_EXTRACTED))
        except (OSError, ValueError):
            return  # it has ended, or has lower limits already


def _extracted(folder: str) -> list[tuple[str, Reader]]:
    """Returns the architecture and the code of each file in a folder. Raises ValueError if they are too large."""
    left, files = MAX_EXTRACTED, []
    for name in sorted(os.listdir(folder)):
        match = CUBIN.search(name)
        content = read_file(os.path.join(folder, name), left)
        left -= len(content)
        arch = match[1] if match else ""
        files.append((arch, Reader(content, f"the code for {arch}")))
    return sorted(files, key=lambda file: file[0])
