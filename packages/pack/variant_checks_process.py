"""The process that tries a variant: `python -m opforge.packages.pack.variant_checks_process FOLDER SAMPLES OUTCOME`."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from opforge.builders.declaration.abi import PLAIN
from opforge.errors import KernelSchemaError
from opforge.packages.form import metadata
from opforge.packages.form.properties import TVM
from opforge.packages.sources import library

WRITES = frozenset({"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate", "shutil.rmtree"})
NO_OPS = "not run: its functions are not ops of torch"
WRITE_FLAGS = 0o1 | 0o2 | 0o100 | 0o1000
"""os.O_WRONLY, O_RDWR, O_CREAT and O_TRUNC on Linux."""


def main() -> None:
    """Writes the outcome of each check as JSON."""
    folder, samples, outcome = sys.argv[1:4]
    checks = {"schemas": schemas(folder), "import": "passed", "opcheck": "not run: the package names no samples"}
    checks["graph"] = checks["opcheck"]
    module: Any = None
    try:
        if checks["schemas"].startswith("failed"):
            checks["import"] = "not run: its kernels do not fit their schemas"
        else:
            module = imported(folder)
    except BaseException as error:
        checks["import"] = _failed(error)
    if module is None:
        checks["opcheck"] = checks["graph"] = "not run: it was not imported"
    if module is not None and samples and checks["schemas"] == NO_OPS:
        checks["opcheck"] = checks["graph"] = NO_OPS
    elif module is not None and samples:
        checks["opcheck"] = _outcome(lambda: opcheck(module, samples))
        checks["graph"] = _outcome(lambda: whole_graph(module, samples))
    with open(outcome, "w", encoding="utf-8") as file:
        json.dump(checks, file)


def schemas(folder: str) -> str:
    """Returns the outcome of comparing the library's kernels with their schemas: `_ops.py` does not when it registers.

    The library is opened, and registers nothing.
    """
    stated = metadata.read(folder)
    file = os.path.join(folder, str(stated.opforge.get("library")))
    try:
        if "source" in stated.opforge:
            file = library.library(folder)[0]
        elif not stated.opforge.get("library"):
            return "not run: it has no library"
        elif str(stated.opforge["properties"]["framework"]) == TVM or stated.opforge["record"]["abi"] == PLAIN:
            return NO_OPS
        import torch  # noqa: F401 - the library needs it

        from opforge.builders.registration import kernel_types

        opened = ctypes.CDLL(file)
        if not hasattr(opened, "opforge_describe"):
            return NO_OPS
        describe = opened.opforge_describe
        describe.restype = ctypes.c_char_p
        own, _, kernels = describe().decode().partition("\f")
        kernel_types.check(stated.name, file, own.splitlines(), kernels.splitlines())
    except KernelSchemaError as error:
        return f"failed: {'; '.join(' '.join(kernel.split()) for kernel in error.kernels)}"
    except Exception as error:
        return _failed(error)
    return "passed"


def imported(folder: str) -> Any:
    """Imports a variant under a name that is not its own. Raises RuntimeError if that writes a file."""
    import torch  # what torch writes is not the package's

    torch.ops  # noqa: B018
    if "source" in metadata.read(folder).opforge:
        library.library(folder)  # nor what its build writes into the store
    written: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in WRITES:
            written.append(f"{event}({arguments[0]!r})")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITE_FLAGS:
            written.append(f"open({arguments[0]!r})")

    active = [True]
    sys.addaudithook(lambda event, arguments: watch(event, arguments) if active else None)
    name = "opforge_tried_package"
    spec = importlib.util.spec_from_file_location(name, f"{folder}/__init__.py", submodule_search_locations=[folder])
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    active.clear()
    if changed := [what for what in written if "/dev/null" not in what]:
        raise RuntimeError(f"importing it writes: {changed[0]}")
    return module


def _samples(module: Any, reference: str) -> Iterable[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Yields an op's overload and the arguments of a call, for each sample.

    Raises TypeError for a sample that is no pair of these.
    """
    name, _, function = reference.partition(":")
    ops = importlib.import_module(f"{module.__name__}._ops").ops
    for sample in getattr(importlib.import_module(name), function)():
        if not (isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[1], (tuple, list))):
            raise TypeError(
                f"{reference} gives {sample!r}; expected a pair of an op's name and its arguments, such as "
                '("relu", (torch.ones(2),))'
            )
        op, arguments = sample
        packet, _, overload = str(op).partition(".")
        yield getattr(getattr(ops, packet), overload or "default"), tuple(arguments)


def opcheck(module: Any, samples: str) -> None:
    """Runs torch's checks of an op's schema, fake kernel and autograd over the samples. Raises what they raise."""
    import torch

    for op, arguments in _samples(module, samples):
        torch.library.opcheck(op, arguments)  # type: ignore[arg-type]


def whole_graph(module: Any, samples: str) -> None:
    """Traces each sample into one graph and compares the results. Raises what torch raises for a break."""
    import torch

    for op, arguments in _samples(module, samples):
        torch._dynamo.reset()
        traced = torch.compile(lambda *values, op=op: op(*values), fullgraph=True, backend="eager")
        torch.testing.assert_close(traced(*arguments), op(*arguments))


def _outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except BaseException as error:
        return _failed(error)
    return "passed"


def _failed(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"failed: {type(error).__name__}: {lines[0]}"


if __name__ == "__main__":
    main()
