"""Builders that compile the source of the GPU kernels for the host, where it runs thread by thread."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from opforge.builders.declaration.kernel_roots import OPFORGE

RUNTIME = Path(__file__).parent / "host_runtime"
COUNTED = Path(__file__).parent / "counted_accesses.cpp"
PARAMETER = re.compile(r"const OPFORGE_GRID_CONSTANT ([^,()]+?) (\w+)(?=[,)])")
LAUNCH = re.compile(r"([\w:]+(?:<(?:[^<>;]|<[^<>;]*>)*>)?)\s*<<<(.*?),\s*(.*?),\s*0,\s*(.*?)>>>\((.*?)\);", re.DOTALL)


def translated(text: str) -> str:
    """Returns a file's text with launches replaced by calls of the fake CUDA runtime.

    Large parameters become references, so that they are not copied for each thread. The GPU's instructions, which the
    preprocessor leaves out, are not called assembly: where there is some, clang compiles a second time, to list what
    the assembler reads.
    """
    text = re.sub(r"\basm\b", "of_the_gpu", text)
    text = PARAMETER.sub(r"const \1& \2", text)
    return LAUNCH.sub(r"host_runtime::run(\2, \3, [&] { \1(\5); });", text)


def on_host(builder: type, folder: Path) -> type:
    """Returns a builder of the same op for the CPU, from the GPU's sources, which are translated into `folder`."""
    sources = []
    for source in builder.sources:
        if source.endswith(".cu"):
            for part in (os.path.dirname(source), "cuda"):
                _translate(Path(OPFORGE.path) / part, folder / part)
            source = os.path.splitext(source)[0] + "_cu.cpp"
        sources.append(source)
    members = {
        "devices": ("cpu",),
        "sources": sources,
        "define_macros": {},
        "folder": str(folder),
        "include_dirs": [str(RUNTIME)],
        "extra_compile_args": ["-O0"],
        "__module__": __name__,
    }
    return type(builder.__name__, (builder,), members)


def count_accesses(builder: type) -> None:
    """Makes a builder of `on_host` count what kernels read and write, for `AccessCounter`. It needs clang."""
    shutil.copy(COUNTED, builder.folder)
    builder.sources = [*builder.sources, COUNTED.name]
    builder.extra_compile_args = [*builder.extra_compile_args, "-fsanitize-coverage=func,trace-loads,trace-stores"]


class AccessCounter:
    """Counts the bytes that the kernels of a library read and write."""

    def __init__(self, library: str) -> None:
        """Takes the library of a builder that counts."""
        self._library = ctypes.CDLL(library)
        self._library.opforge_count.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
        self._library.opforge_counted.restype = ctypes.c_int64

    def bytes_of(self, call: Callable[[], object], *tensors: Tensor) -> int:
        """Returns the bytes of two tensors that a call moves: each address once for each block of threads."""
        for number, tensor in enumerate(tensors):
            self._library.opforge_count(number, tensor.data_ptr(), tensor.nbytes)
        call()
        return sum(self._library.opforge_counted(number) for number in range(len(tensors)))


def _translate(folder: Path, target: Path) -> None:
    """Writes the files of a folder, translated; what is shared with the host is included from where it is."""
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        text = path.read_text()
        for part in ("fused", "cpu"):
            text = text.replace(f'"../{part}/', f'"{OPFORGE.path}/{part}/')
        (target / (path.stem + ("_cu.cpp" if path.suffix == ".cu" else path.suffix))).write_text(translated(text))
