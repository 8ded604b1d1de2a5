"""The names of what Triton itself compiled on the command line, `triton:NAME`, and what is on this machine."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .output import show_table, size_text

if TYPE_CHECKING:
    from opforge.cache.records.triton import Kernel

PREFIX = "triton:"


def stored(names: Sequence[str] | None = None) -> list[Kernel]:
    """Returns the kernels and timings in the cache, or those of these names, which may be globs.

    Raises click.UsageError for a name that stands for nothing.
    """
    from opforge.cache.current import own_store
    from opforge.cache.records import triton

    found = list(triton.stored(own_store().layout.root))
    if names is None:
        return found
    readable = [kernel for kernel in found if not kernel.problem]
    there = {kernel.name for kernel in readable}
    missing = [PREFIX + name for name in names if name != "*" and not fnmatch.filter(there, name)]
    if missing:
        held = ", ".join(sorted(there)) or "none"
        advice = "opforge.triton_cache() keeps them"
        raise click.UsageError(f"there is no {', '.join(missing)} here. There are kernels of: {held}. {advice}.")
    return [kernel for kernel in readable if any(fnmatch.fnmatchcase(kernel.name, name) for name in names)]


def to_json(kernel: Kernel) -> dict[str, Any]:
    """Returns what --json prints of one."""
    from opforge.cache.records import triton

    fields = {"path": kernel.folder, "key": kernel.key, "size": triton.size(kernel), "fetched": kernel.is_fetched}
    if kernel.problem:
        return {**fields, "problem": kernel.problem}
    return {**fields, "problem": "", "label": kernel.label, **kernel.facts}


def show(kernels: Sequence[Kernel]) -> None:
    """Prints a table."""
    from opforge.cache.records import triton

    rows = []
    for kernel in kernels:
        if kernel.problem:
            rows.append((f"({kernel.problem})", "", "", "", "", "", kernel.folder))
            continue
        facts, source = kernel.facts, "fetched" if kernel.is_fetched else "here"
        size = size_text(triton.size(kernel))
        rows.append((kernel.name, facts["target"], facts["triton"], size, source, kernel.label, kernel.folder))
    columns = ("TRITON", "TARGET", "VERSION", "SIZE", "FROM", "DIGITS", "PATH")
    show_table(columns, rows, numbers=("SIZE",), optional="PATH")
