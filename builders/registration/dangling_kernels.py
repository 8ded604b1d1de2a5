"""Kernels that are registered for no op, and ops without a function. Imported after a build."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

from opforge.builders.declaration.abi import REGISTER, TORCH

from .places import path

log = logging.getLogger("opforge")
ADVICE = (
    "Write a PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) or a TORCH_LIBRARY block that names the functions;"
    " or extern \"C\" before each of plain functions, which need no torch (abi='c')"
)
_warned: set[str] = set()
"""The kernels without an op that were reported in this process."""


def warn(op: str, library: Any, roots: Iterable[Any] = ()) -> None:
    """Logs a warning for each kernel that is registered for no op, if an op has a similar name.

    Without one it may be for a library that is loaded later. torch itself says nothing.
    `roots` are where the sources are. Logs one too if the op has no function at all.
    """
    import sys

    torch: Any = sys.modules.get("torch")
    _warn_if_empty(op, library, torch)
    kernels: dict[str, str] = {}
    for text in torch._C._dispatch_find_dangling_impls() if torch else ():
        place = re.search(r"registered at (\S+)", text)
        kernels[text.splitlines()[0].removeprefix("name: ")] = f" ({path(place[1], roots)})" if place else ""
    if kernels.keys() <= _warned:
        return
    ops = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()} - kernels.keys()
    for name in kernels.keys() - _warned:
        if near := _near_op(name, ops, getattr(library, "__names__", ())):
            _warned.add(name)
            text = "%s: a kernel is registered for %s%s, and no op has this name: it is never called. Did you mean %s?"
            log.warning(text, op, name, kernels[name], near)


def _warn_if_empty(op: str, library: Any, torch: Any) -> None:
    """Logs a warning if a library of the ABI "torch" gives Python no function: nobody could call it.

    It is a compile error for the other ABIs. A library with blocks may have kernels for the ops of another one.
    """
    record = library.__entry__.record if hasattr(library, "__entry__") else {}
    if not torch or record.get("abi") != TORCH or REGISTER in record["exports"]:
        return
    if not any(name.startswith(f"{op}::") for name in torch._C._dispatch_get_all_op_names()):
        log.warning("%s: it has no function: the library registers none in torch.ops.%s. %s", op, op, ADVICE)


def _near_op(name: str, ops: Iterable[str], own: Sequence[str]) -> str:
    """Returns the op that was probably meant: of the same namespace, or of a similar one if it has this op's name.

    Empty if there is none.
    """
    import difflib

    namespace, _, function = name.partition("::")
    same = [other for other in ops if other.startswith(f"{namespace}::")]
    if not same and function in own:
        same = [other for other in ops if other.endswith(f"::{function}")]
    return next(iter(difflib.get_close_matches(name, same, n=1)), "")
