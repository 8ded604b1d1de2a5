"""Remembers which installed variant a call of `get_kernel` led to."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opforge.foundation import remembered_values_writer, settings
from opforge.foundation.remembered_values import FlatStamps, PathStamp, stamps_of

from . import checkout
from .variants import Loadable


def stamps(name: str) -> FlatStamps:
    """Returns the stamps of the folders in which releases of a package are. They must be taken before the search."""
    if (folder := settings.kernels().get(name)) is not None:
        return of_paths(checkout.watched(folder))
    return of_paths([f"{root}/kernels/names/{name}" for root, _scope in settings.kernel_folders()])


def of_paths(paths: Sequence[str]) -> FlatStamps:
    """Returns the stamps of some paths; of a link its own."""
    return FlatStamps(paths, stamps_of(paths, len(paths)))


def watched(before: FlatStamps, choice: Loadable) -> FlatStamps:
    """Returns the stamps of everything that led to a variant, and of its files as far as they are known."""
    files: list[PathStamp] = [
        (os.path.join(choice.folder, path) if path else choice.folder, tuple(stamp))
        for path, stamp in choice.receipt.items()
    ]
    return FlatStamps.of([*before.pairs(), *files])


def remember(name: str, at_ns: int, before: FlatStamps, scope: str, choice: Loadable) -> None:
    """Remembers a variant with its receipt. If that fails, the next call searches, nothing else.

    `before` are the `stamps` of the package, which were taken at `at_ns`.
    """
    everything = watched(before, choice)
    value = {"scope": scope, "folder": choice.folder, "module": choice.module, "content": choice.content}
    value |= {"version": choice.version}
    value |= {"files": [*choice.receipt]}  # type: ignore[dict-item]
    remembered_values_writer.remember(name, everything, value, at_ns, links=len(everything.paths))
