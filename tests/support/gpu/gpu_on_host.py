"""Builders that run the GPU kernels' own source on the host, thread by thread: what can be tried without a GPU."""

from __future__ import annotations

import os
import re
from pathlib import Path

from opforge.builders.spec.kernel_roots import OPFORGE

RUNTIME = Path(__file__).parent / "host_runtime"
PARAMETER = re.compile(r"const OPFORGE_GRID_CONSTANT ([^,()]+?) (\w+)(?=[,)])")
LAUNCH = re.compile(r"([\w:]+(?:<(?:[^<>;]|<[^<>;]*>)*>)?)\s*<<<(.*?),\s*(.*?),\s*0,\s*(.*?)>>>\((.*?)\);", re.DOTALL)


def translated(text: str) -> str:
    """A file's text with its launches as calls of the stand-in for CUDA's runtime, and its large parameters not copied
    for each thread.
    """
    text = PARAMETER.sub(r"const \1& \2", text)
    return LAUNCH.sub(r"host_runtime::run(\2, \3, [&] { \1(\5); });", text)


def on_host(builder: type, folder: Path) -> type:
    """A builder of the same op for the CPU, from the GPU's sources, which are translated into `folder`."""
    sources = []
    for source in builder.sources:
        name = os.path.basename(source)
        if source.endswith(".cu"):
            for path in (Path(OPFORGE.path) / source).parent.iterdir():
                target = folder / (path.stem + ("_cu.cpp" if path.suffix == ".cu" else path.suffix))
                text = path.read_text().replace('"../fused/', f'"{OPFORGE.path}/fused/')
                target.write_text(translated(text))
            name = os.path.splitext(name)[0] + "_cu.cpp"
            sources.append(name)
        else:
            sources.append(source)
    members = {
        "devices": ("cpu",),
        "sources": sources,
        "define_macros": {},
        "folder": str(folder),
        "include_dirs": [str(RUNTIME)],
        "extra_compile_args": ["-O1"],
        "__module__": __name__,
    }
    return type(builder.__name__, (builder,), members)
