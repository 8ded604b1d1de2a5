"""Builds the library of a variant that holds sources: with the compilers of this machine, into the user's store."""

from __future__ import annotations

import os
from functools import cache

from opforge.errors import KernelFormatError, OpIncompatibleError
from opforge.packages.form import metadata
from opforge.packages.form.metadata import SOURCES

from . import reading


@cache
def library(folder: str) -> tuple[str, str]:
    """Returns the path of the library, and the suffix for its namespaces: a stored one, or a new one.

    The `_ops.py` of every published variant with sources calls this: its name and arguments must stay. Raises
    KernelFormatError, OpIncompatibleError, and what building raises.
    """
    stated = metadata.read(folder)
    declared, where = stated.opforge.get("source"), os.path.join(folder, metadata.FILE)
    if declared is None:
        raise KernelFormatError(where, "it has no sources", "a variant that opforge pack --with-source has written")
    builder = reading.builder_of(declared, os.path.join(folder, SOURCES), where)(None, False)
    verdict = builder.is_compatible()
    if not verdict:
        raise OpIncompatibleError(builder.name, str(builder.target), verdict.reasons)
    entry = builder.build()
    return entry.library, f"_{entry.record['sha256'][:10]}"
