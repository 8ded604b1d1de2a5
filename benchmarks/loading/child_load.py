"""Loads one op in a fresh process and prints its time: `python -m benchmarks.loading.child_load CONTENDER ...`."""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opforge import OpBuilder

FURTHER_LOADS = 300
UNWANTED = ("subprocess", "filelock", "platformdirs", "click", "rich", "importlib.metadata", "ninja")


def main() -> None:
    """Prints one JSON object: seconds of the import and of the loads, and what else the contender reports."""
    contender, *arguments = sys.argv[1:]
    # As timeit does. A collection of torch's objects takes as long as a load, and would hit one contender by chance.
    if os.environ.get("BENCH_COLLECTOR") != "on":
        gc.disable()
    result = CONTENDERS[contender](*arguments)
    result["children_rss"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    print(json.dumps(result))


def _byte_code() -> str:
    """Returns, in words, whether this process imported opforge from compiled byte code."""
    cached = getattr(sys.modules.get("opforge.foundation.settings"), "__cached__", None)
    if sys.flags.dont_write_bytecode:
        return "compiled in memory (byte code is not written)"
    return "from .pyc files" if cached and os.path.exists(cached) else "compiled from source"


def _further_load(load: Callable[[], object]) -> float:
    """Returns the median seconds of further loads in this process."""
    samples = []
    for _ in range(FURTHER_LOADS):
        began = time.perf_counter()
        load()
        samples.append(time.perf_counter() - began)
    return statistics.median(samples)


def _watched(builder: OpBuilder) -> int:
    """Returns how many files and folders a further load compares."""
    loaded = builder.current()
    if loaded is None:
        raise RuntimeError("each load looks the op up again: was a file changed in the last two seconds?")
    return len(loaded.watched.paths)


def ours(builder: str, *modules: str) -> dict[str, Any]:
    """Loads an op of the accelerator, as programs do. `modules` are imported before the clock starts."""
    import torch  # noqa: F401  # before the clock starts: only the load of the op is measured

    for module_name in modules:
        importlib.import_module(module_name)
    before = set(sys.modules)
    processor = [time.process_time()]
    began = time.perf_counter()
    import opforge

    imported = time.perf_counter()
    processor.append(time.process_time())
    # Not shared with the timing of further loads: the cost of a function call would be part of what is measured.
    module = opforge.get_accelerator().create_op_builder(builder).load()  # type: ignore[union-attr]
    loaded = time.perf_counter()
    processor.append(time.process_time())
    added = sorted(set(sys.modules) - before)
    return {
        "import": imported - began,
        "load": loaded - imported,
        "first": processor[2] - processor[0],
        "again": _further_load(lambda: opforge.get_accelerator().create_op_builder(builder).load()),  # type: ignore[union-attr]
        "watched": _watched(opforge.get_accelerator().create_op_builder(builder)),  # type: ignore[arg-type]
        "origin": module.origin,
        "path": module.path,
        "accelerator": opforge.get_accelerator().__class__.__name__,
        "byte_code": _byte_code(),
        "modules": sum(name.partition(".")[0] == "opforge" for name in added),
        "unwanted": [name for name in added if name in UNWANTED],
    }


def ours_class(import_path: str, *modules: str) -> dict[str, Any]:
    """Loads the op of a builder class, "module:Class". Its module is imported before the clock starts, as `modules`."""
    import torch  # noqa: F401

    import opforge

    for module_name in modules:
        importlib.import_module(module_name)
    module, _, name = import_path.partition(":")
    builder = getattr(importlib.import_module(module), name)
    processor, began = time.process_time(), time.perf_counter()
    opforge.get_accelerator()
    loaded = builder().load()
    ended = time.perf_counter()
    return {"load": ended - began, "first": time.process_time() - processor, "origin": loaded.origin}


def ours_source(source: str, *modules: str) -> dict[str, Any]:
    """Loads a user's source of the stable ABI by `opforge.load`. `modules` are imported before the clock starts."""
    import torch  # noqa: F401

    for module_name in modules:
        importlib.import_module(module_name)
    processor, began = time.process_time(), time.perf_counter()
    import opforge

    imported = time.perf_counter()
    loaded = opforge.load("bench_stable_relu", [source], extra_cflags=["-O3"])
    ended = time.perf_counter()
    first = time.process_time() - processor
    return {"import": imported - began, "load": ended - imported, "first": first, "origin": loaded.origin}


def ours_torch(source: str) -> dict[str, Any]:
    """Loads a user's pybind source by `opforge.load`, with cpp_extension's arguments."""
    import torch

    before = set(sys.modules)
    processor, began = time.process_time(), time.perf_counter()
    import opforge

    imported = time.perf_counter()
    module = opforge.load("bench_relu", [source], extra_cflags=["-O3"])
    loaded = time.perf_counter()
    first = time.process_time() - processor
    added = sorted(set(sys.modules) - before)
    from opforge.builders import jit

    module.bench_relu(torch.zeros(1))
    return {
        "import": imported - began,
        "load": loaded - imported,
        "first": first,
        "again": _further_load(lambda: opforge.load("bench_relu", [source], extra_cflags=["-O3"])),
        "watched": _watched(next(builder for ((_arguments, builder),) in jit.calls.values())),
        "byte_code": _byte_code(),
        "unwanted": [name for name in added if name in UNWANTED],
    }


def floor(path: str) -> dict[str, Any]:
    """Opens an existing library with torch."""
    import torch

    processor, began = time.process_time(), time.perf_counter()
    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    loaded, ended = time.perf_counter(), time.process_time()
    return {"import": 0.0, "load": loaded - began, "first": ended - processor}


def extension(source: str, folder: str) -> dict[str, Any]:
    """Loads the same source with torch's own loader."""
    import torch

    began = time.perf_counter()
    from torch.utils import cpp_extension

    imported = time.perf_counter()
    module = cpp_extension.load("bench_relu", [source], extra_cflags=["-O3"], build_directory=folder)
    loaded = time.perf_counter()
    module.bench_relu(torch.zeros(1))
    return {"import": imported - began, "load": loaded - imported}


def deepspeed() -> dict[str, Any]:
    """Loads the same op with DeepSpeed's accelerator."""
    import torch  # noqa: F401

    began = time.perf_counter()
    from deepspeed.accelerator import get_accelerator

    imported = time.perf_counter()
    get_accelerator().create_op_builder("CPUAdamBuilder").load(verbose=False)
    loaded = time.perf_counter()
    return {
        "import": imported - began,
        "load": loaded - imported,
        "again": _further_load(lambda: get_accelerator().create_op_builder("CPUAdamBuilder").load(verbose=False)),
    }


def _builder(name: str) -> OpBuilder:
    from opforge import OpBuilder, get_accelerator

    builder = get_accelerator().create_op_builder(name)
    if not isinstance(builder, OpBuilder):
        raise TypeError(f"{name}: the accelerator {get_accelerator().name} has no such op")
    return builder


def build_only(builder: str) -> dict[str, Any]:
    """Builds an op in a process without torch.

    A child's peak memory includes what its parent had when it started. A parent with torch would hide the compiler's.
    """
    began = time.perf_counter()
    _builder(builder).build()
    return {
        "build": time.perf_counter() - began,
        "torch": "torch" in sys.modules,
        "own_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


def bare_ninja(builder: str, folder: str) -> dict[str, Any]:
    """Runs the compiler commands of a build with ninja alone."""
    from benchmarks.commands import build_steps, run_with_ninja
    from opforge.cache.current_store import writable_store

    elapsed = run_with_ninja(folder, build_steps(_builder(builder), writable_store()))
    return {"load": elapsed.wall, "cpu": elapsed.cpu}


def processor_time(builder: str) -> dict[str, Any]:
    """Builds and loads an op. Returns the processor time of this process, `import opforge` included, and of children.

    Garbage is collected as in any program, after one collection of torch's objects: the import of torch leaves that
    one to whatever comes next.
    """
    import torch  # noqa: F401

    gc.enable()
    gc.collect()
    before = os.times()
    import opforge

    module = opforge.get_accelerator().create_op_builder(builder).load()  # type: ignore[union-attr]
    after = os.times()
    if module.origin != "built":
        raise RuntimeError(f"{builder} came from {module.origin}: the store was not empty")
    own = after.user + after.system - before.user - before.system
    return {
        "own": own,
        "cpu": own + after.children_user + after.children_system - before.children_user - before.children_system,
    }


CONTENDERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": ours,
    "ours-class": ours_class,
    "ours-source": ours_source,
    "ours-torch": ours_torch,
    "floor": floor,
    "extension": extension,
    "deepspeed": deepspeed,
    "build-only": build_only,
    "bare-ninja": bare_ninja,
    "processor-time": processor_time,
}

if __name__ == "__main__":
    main()
