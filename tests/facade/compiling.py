"""Compiles a source on the facade, and on torch's own headers, and says what each took."""

import dataclasses
import fcntl
import os
import resource
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from opforge.builders.facade import flags
from opforge.builders.run import precompiled_header

TORCH = Path(torch.__file__).parent / "include"
# torch's headers refuse an older standard.
STANDARD = "c++20" if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15) else "c++17"
HEADER = "<torch/extension.h>"
kept: list[Path] = []
"""The folder for a precompiled header that libraries share, if there is one: tests/compile/facade has it."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What compiling one library took."""

    processor_seconds: float
    wall_seconds: float
    megabytes: float


def stub(folder: Path) -> Path:
    """Returns a folder with an empty library in the place of torch's: a facade library links without torch."""
    target = folder / "stub" / "libtorch_cpu.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        command = ["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(target), "-Wl,-soname,libtorch_cpu.so"]
        subprocess.run(command, check=True)
    return target.parent


def command(
    kind: str, name: str, sources: Sequence[Path], target: Path, options: Sequence[str] = (), include: Path = TORCH
) -> list[str]:
    """Returns the command that compiles and links a library.

    Args:
        kind: `facade`, or `torch` for torch's own headers.
        name: The extension's name.
        sources: The C++ files.
        target: The library.
        options: Further flags of the project.
        include: torch's include folder.
    """
    python = sysconfig.get_path("include")
    if kind == "facade":
        links = target.parent / "torch-headers"
        links.mkdir(parents=True, exist_ok=True)
        flags.link_torch_headers(links, include)
        given = ["-fno-gnu-unique", *flags.compile_flags(name, links, Path(python)), f"-L{stub(target.parent)}"]
        libraries = ["-Wl,--no-as-needed", "-ltorch_cpu"]
    else:
        library = include.parent / "lib"
        includes = [include, include / "torch" / "csrc" / "api" / "include", python]
        given = ["-w", f"-std={STANDARD}", "-fPIC", f"-DTORCH_EXTENSION_NAME={name}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
        given += ["-DNDEBUG"]  # as Python's own flags have it, which torch's builder takes
        given += [part for folder in includes for part in ("-isystem", str(folder))] + [f"-L{library}"]
        libraries = ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    return ["g++", "-O2", *given, *options, "-shared", "-o", str(target), *map(str, sources), *libraries]


def with_kept_header(words: Sequence[str], sources: Sequence[Path]) -> list[str]:
    """Returns a command of the facade that uses a precompiled header, as the builder's do (run/precompiled_header.py).

    The header is made by the first process that needs it. That the compiler does not take it is an error.
    """
    first = [precompiled_header.FIRST_DIRECTIVE.match(source.read_text()) for source in sources]
    if not kept or "-O0" not in words or "-mavx2" in words or not all(found and found[1] == HEADER for found in first):
        return [*words]
    header, links = kept[0] / precompiled_header.NAME, kept[0] / "torch-headers"
    links.mkdir(parents=True, exist_ok=True)
    flags.link_torch_headers(links, TORCH)
    own = next(word for word in words if word.endswith("/torch-headers"))
    words = [str(links) if word == own else word for word in words]
    end = next(at for at, word in enumerate(words) if word.startswith("-L"))
    given = [word for word in words[1:end] if not word.startswith(precompiled_header.OF_THE_MODULE)]
    with open(kept[0] / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path(f"{header}.gch").exists():
            header.write_text(f"{precompiled_header.WITHOUT_ENTRY}#include {HEADER}\n")
            made = [*given, "-O0", "-x", "c++-header", str(header), "-o", f"{header}.gch"]
            subprocess.run(["g++", *made], check=True)
    used = ["-include", str(header), "-include", precompiled_header.ENTRY, "-Winvalid-pch", "-Werror=invalid-pch"]
    return [words[0], *used, *words[1:]]


def cuda_command(
    name: str, source: Path, target: Path, options: Sequence[str] = (), architecture: str = "90"
) -> list[str]:
    """Returns the command by which nvcc compiles a source on the facade to an object."""
    links = target.parent / "torch-headers"
    links.mkdir(parents=True, exist_ok=True)
    flags.link_torch_headers(links, TORCH)
    given = flags.nvcc_flags(name, links, Path(sysconfig.get_path("include")))
    arch = ["-gencode", f"arch=compute_{architecture},code=sm_{architecture}"]
    return ["nvcc", "-w", "-c", *arch, *given, *options, str(source), "-o", str(target)]


def compile_library(
    kind: str, name: str, sources: Sequence[Path], target: Path, options: Sequence[str] = (), include: Path = TORCH
) -> Cost:
    """Compiles a library, one file after the other.

    Returns:
        What it took.

    Raises:
        RuntimeError: The compiler refused a source. Its output is in the text.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    words = command(kind, name, sources, target, options, include)
    if kind == "facade" and include == TORCH:
        words = with_kept_header(words, sources)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"LC_ALL": "C"},
    )
    if ended.returncode:
        raise RuntimeError(f"{name} does not compile on {kind}:\n{ended.stdout[-6000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # The largest of all children so far: right for torch's headers, an upper bound for the facade.
    return Cost(used, time.perf_counter() - began, after.ru_maxrss / 1024)
