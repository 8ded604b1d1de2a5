"""Loads or installs one package in a fresh process: `python -m benchmarks.packages.child_kernel MODE ...`."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

FURTHER = 2000


def main() -> None:
    """Prints one JSON object with seconds."""
    gc.disable()
    mode, *arguments = sys.argv[1:]
    print(json.dumps(MODES[mode](*arguments)))


def bare(folder: str) -> dict[str, Any]:
    """Imports the package's files as they are: Python's own import, and the dlopen in its `_ops.py`."""
    import torch

    began = time.perf_counter()
    path = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("bench_bare", path, submodule_search_locations=[folder])
    assert spec and spec.loader
    module = sys.modules["bench_bare"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seconds = time.perf_counter() - began
    module.scale(torch.ones(1))
    return {"load": seconds}


def ours(name: str) -> dict[str, Any]:
    """Loads what is installed, by name; then again in the same process."""
    import torch

    processor, began = time.process_time(), time.perf_counter()
    import opforge

    imported = time.perf_counter() - began
    began = time.perf_counter()
    module = opforge.get_kernel(name, 2)
    seconds = time.perf_counter() - began
    processor = time.process_time() - processor
    module.scale(torch.ones(1))
    began = time.perf_counter()
    for _number in range(FURTHER):
        opforge.get_kernel(name, 2)
    return {"load": seconds, "import": imported, "first": processor, "again": (time.perf_counter() - began) / FURTHER}


def install(name: str, url: str, root: str) -> dict[str, Any]:
    """Installs a package from a remote and calls it."""
    import torch

    import opforge

    began = time.perf_counter()
    from opforge.packages.form import version
    from opforge.packages.installed.layout import Root
    from opforge.packages.registry import install_release as installing
    from opforge.packages.registry import selection

    imported = time.perf_counter() - began
    began = time.perf_counter()
    choice = selection.choose(name, version.ANY, selection.sources([url]))
    installing.install_release(Root(root, "folder"), choice)
    installed = time.perf_counter() - began
    opforge.get_kernel(name).scale(torch.ones(1))
    return {"import": imported, "install": installed, "total": imported + time.perf_counter() - began}


def folder(path: str) -> dict[str, Any]:
    """Loads a package in a folder by opforge."""
    import torch

    processor, began = time.process_time(), time.perf_counter()
    import opforge

    module = opforge.get_local_kernel(path)
    seconds = {"load": time.perf_counter() - began, "first": time.process_time() - processor}
    module.scale(torch.ones(1))
    return seconds


def hub(path: str) -> dict[str, Any]:
    """Loads a package in a folder by the hub's loader."""
    import torch

    processor, began = time.process_time(), time.perf_counter()
    import kernels

    module = kernels.get_local_kernel(pathlib.Path(path))
    seconds = {"load": time.perf_counter() - began, "first": time.process_time() - processor}
    module.scale(torch.ones(1))
    return seconds


MODES: dict[str, Callable[..., Any]] = {"bare": bare, "ours": ours, "install": install, "folder": folder, "hub": hub}

if __name__ == "__main__":
    main()
