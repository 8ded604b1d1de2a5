"""Remembers which installed variant a call of `get_kernel` led to."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from opforge import formats, settings
from opforge.warm import machine_folder

from .get_kernel import Stamps, stamp

RACY_NS = 2_000_000_000
"""A folder that was changed so shortly before may be changed again without another stamp."""


def stamps(name: str) -> Stamps:
    """Returns the stamps of the folders in which releases of a package are. They must be taken before the search.

    Empty if they would not show a change.
    """
    folder = settings.kernel_checkouts().get(name)
    if folder is not None:
        from . import checkout

        return [[path, stamp(path)] for path in checkout.watched(folder)]
    folders = [f"{root}/kernels/names/{name}" for root, _scope in settings.kernel_folders()]
    return [[folder, stamp(folder)] for folder in folders]


def remember(key: str, before: Stamps, root: str, scope: str, folder: str, module: str, own: Mapping[str, Any]) -> None:
    """Remembers the variant in `folder`, with its receipt. If that fails, the next call searches, nothing else."""
    newest = max([numbers[2] for _path, numbers in before if numbers] + [numbers[2] for numbers in own.values()])
    if time.time_ns() - newest < RACY_NS:
        return
    value = {
        "format": formats.KERNEL_LOOKUP,
        "key": key,
        "stamps": before,
        "root": root,
        "scope": scope,
        "folder": folder,
    }
    value |= {"module": module, "receipt": dict(own)}
    machine_folder.keep(key, json.dumps(value).encode())
