"""The description: what an op is, before any compiler is chosen. It finds prebuilt entries."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of

from . import abi, flag_paths, kernel_roots
from .identity import IDENTITY
from .op_spec import include_folders

if TYPE_CHECKING:
    from .op_spec import OpSpec

FORMAT = 2
FIELDS = tuple(name for name, enters in IDENTITY.items() if enters.description)


def describe(spec: OpSpec) -> dict[str, object]:
    """Returns the fields that identify the op, JSON-able, without a path or a time.

    Reads the op's own sources. Raises SourceNotFoundError if one of them, or an include folder, is missing.
    """
    fields = {name: _VALUES[name](spec) if name in _VALUES else getattr(spec, name) for name in FIELDS}
    # What the ABI ties the binary to: torch and Python, for the `torch` ABI.
    return fields | {"requires": abi.part(spec.abi, spec.name, spec.name, spec.torch_target).requires}


def description_key(spec: OpSpec) -> str:
    """Returns the key under which prebuilt entries of this op are found. Raises SourceNotFoundError."""
    return key_of([FORMAT, describe(spec)])


def _sources(spec: OpSpec) -> list[tuple[str, str, str]]:
    """Returns (root, path, SHA-256) of each source."""
    disk, paths = Disk(), {root.name: root.path for root in spec.roots} | {"system": "/"}
    located = kernel_roots.locate(spec.name, spec.sources, spec.roots)
    return [(*where, disk.digest(os.path.join(paths[where.root], where.path)) or "") for where in located]


_VALUES: dict[str, Callable[[OpSpec], object]] = {
    # One library may hold code for many architectures: its record says for which.
    "target": lambda spec: spec.target.device,
    "torch_target": lambda spec: spec.torch_target if spec.abi == abi.STABLE else "",
    "sources": _sources,
    "include_dirs": include_folders,
    "cxx_flags": lambda spec: flag_paths.named(spec.cxx_flags, spec.roots),
    "device_flags": lambda spec: flag_paths.named(spec.device_flags, spec.roots),
    "link_flags": lambda spec: flag_paths.named(spec.link_flags, spec.roots),
    "roots": lambda spec: [(root.name, root.include) for root in spec.declared_roots],
}
"""The fields whose value in the description is not the spec's own."""
