"""One fresh process that loads one op once, and says what that took: `python -m benchmarks.child_load WHO ...`."""

from __future__ import annotations

import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .machine import byte_code

if TYPE_CHECKING:
    from opforge import OpBuilder

AGAIN = 300
UNWANTED = ("subprocess", "filelock", "platformdirs", "click", "rich", "importlib.metadata", "ninja")


def main() -> None:
    """Print one JSON object: seconds of the import and of the loads, and what else the contender tells."""
    who, *arguments = sys.argv[1:]
    gc.disable()  # as timeit does: a collection, which torch's objects make as long as a load, comes at one by chance
    found = CONTENDERS[who](*arguments)
    found["children_rss"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    print(json.dumps(found))


def _again(load: Callable[[], object]) -> float:
    """The median of the further loads of a process."""
    spent = []
    for _ in range(AGAIN):
        began = time.perf_counter()
        load()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def ours(builder: str) -> dict[str, Any]:
    """The accelerator's builder, as programs ask for it."""
    import torch  # noqa: F401  # the load of an op is what comes after it

    before = set(sys.modules)
    began = time.perf_counter()
    import opforge

    imported = time.perf_counter()
    # Spelled out and not shared with the timing of later loads: a function call costs what is measured there.
    module = opforge.get_accelerator().create_op_builder(builder).load()
    loaded = time.perf_counter()
    added = sorted(set(sys.modules) - before)
    return {
        "import": imported - began,
        "load": loaded - imported,
        "again": _again(lambda: opforge.get_accelerator().create_op_builder(builder).load()),
        "origin": module.origin,
        "path": module.path,
        "accelerator": type(opforge.get_accelerator()).__name__,
        "byte_code": byte_code(),
        "added": len(added),
        "unwanted": [name for name in added if name in UNWANTED],
    }


def ours_torch(source: str) -> dict[str, Any]:
    """A user's pybind source, by the call that has cpp_extension's arguments."""
    import torch

    before = set(sys.modules)
    began = time.perf_counter()
    import opforge

    imported = time.perf_counter()
    module = opforge.load("bench_relu", [source], extra_cflags=["-O3"])
    loaded = time.perf_counter()
    added = sorted(set(sys.modules) - before)
    module.bench_relu(torch.zeros(1))
    return {
        "import": imported - began,
        "load": loaded - imported,
        "again": _again(lambda: opforge.load("bench_relu", [source], extra_cflags=["-O3"])),
        "byte_code": byte_code(),
        "unwanted": [name for name in added if name in UNWANTED],
    }


def floor(path: str) -> dict[str, Any]:
    """A library that is there already, opened by torch."""
    import torch

    began = time.perf_counter()
    torch.ops.load_library(path)
    return {"import": 0.0, "load": time.perf_counter() - began}


def extension(source: str, folder: str) -> dict[str, Any]:
    """The same source by torch's own loader."""
    import torch

    began = time.perf_counter()
    from torch.utils import cpp_extension

    imported = time.perf_counter()
    module = cpp_extension.load("bench_relu", [source], extra_cflags=["-O3"], build_directory=folder)
    loaded = time.perf_counter()
    module.bench_relu(torch.zeros(1))
    return {"import": imported - began, "load": loaded - imported}


def deepspeed() -> dict[str, Any]:
    """DeepSpeed's accelerator's builder of the same op, by the same words."""
    import torch  # noqa: F401

    began = time.perf_counter()
    from deepspeed.accelerator import get_accelerator

    imported = time.perf_counter()
    get_accelerator().create_op_builder("CPUAdamBuilder").load(verbose=False)
    loaded = time.perf_counter()
    return {
        "import": imported - began,
        "load": loaded - imported,
        "again": _again(lambda: get_accelerator().create_op_builder("CPUAdamBuilder").load(verbose=False)),
    }


def _builder(name: str) -> OpBuilder:
    from opforge import OpBuilder, get_accelerator

    found = get_accelerator().create_op_builder(name)
    if not isinstance(found, OpBuilder):
        raise TypeError(f"{name}: {get_accelerator().name} has no such op")
    return found


def build_only(builder: str) -> dict[str, Any]:
    """A build in a process without torch.

    A child's peak counts what its parent held when it started, so that a parent with torch would hide the compiler.
    """
    began = time.perf_counter()
    _builder(builder).build()
    return {
        "build": time.perf_counter() - began,
        "torch": "torch" in sys.modules,
        "own_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


def bare_ninja(builder: str, folder: str) -> dict[str, Any]:
    """The compiler's part of a build: the same commands, under ninja alone."""
    from opforge.cache.current import writable_store

    from .commands import steps_of, under_ninja

    return {"load": under_ninja(folder, steps_of(_builder(builder), writable_store())).wall}


CONTENDERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": ours,
    "ours-torch": ours_torch,
    "floor": floor,
    "extension": extension,
    "deepspeed": deepspeed,
    "build-only": build_only,
    "bare-ninja": bare_ninja,
}

if __name__ == "__main__":
    main()
