"""The description, which identifies an op: the fields of `OpSpec` that are in it.

The *description* names the op and not the compiler: it finds prebuilt entries. The *plan key* is everything that is
known before a compiler starts. The key of a remembered look-up holds every field, with all paths.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.records.inputs import RootedPath
from opforge.foundation import formats

from . import abi, kernel_roots
from .op_spec import IDENTITY, OpSpec

FIELDS = tuple(name for name, enters in IDENTITY.items() if enters.description)


def describe(spec: OpSpec) -> dict[str, object]:
    """Returns the fields that identify the op, JSON-able, without a path or a time.

    Reads the op's own sources. Raises SourceNotFoundError if one of them, or an include folder, is missing.
    """
    abi.check(spec.abi, spec.name, spec.torch_target)
    fields = {name: _VALUES[name](spec) if name in _VALUES else getattr(spec, name) for name in FIELDS}
    # What the ABI ties the binary to: torch and Python, for the `torch` ABI.
    return fields | {"requires": abi.requirements(spec.abi, spec.name)}


def description_key(spec: OpSpec) -> str:
    """Returns the key under which prebuilt entries of this op are found. Raises SourceNotFoundError."""
    return key_of([formats.DESCRIPTION, describe(spec)])


def _sources(spec: OpSpec) -> list[tuple[str, str, str]]:
    """Returns (root, path, SHA-256) of each source."""
    disk, paths = Disk(), {root.name: root.path for root in spec.roots} | {"system": "/"}
    located = kernel_roots.locate_pairs(spec.name, spec.sources, spec.roots)
    return [(root, path, disk.digest(os.path.join(paths[root], path)) or "") for root, path in located]


def _named(flags: tuple[str, ...], spec: OpSpec) -> tuple[str, ...]:
    """Returns the flags with the names of roots instead of their paths. Most ops have no path in a flag."""
    text = "".join(flags)
    if not ("/" in text or "{" in text or "}" in text):
        return flags
    from .flag_paths import named

    return named(flags, spec.roots)


def _include_dirs(spec: OpSpec) -> list[RootedPath]:
    from .include_folders import include_folders  # not for most ops: a look-up that remembers nothing imports no more

    return include_folders(spec, spec.include_dirs)


def _groups(spec: OpSpec) -> list[dict[str, object]]:
    from .include_folders import group_folders

    return [
        {
            **group._asdict(),
            "sources": kernel_roots.locate_pairs(spec.name, group.sources, spec.roots),
            "include_dirs": folders,
            "cxx_flags": _named(group.cxx_flags, spec),
            "device_flags": _named(group.device_flags, spec),
        }
        for group, folders in group_folders(spec)
    ]


_VALUES: dict[str, Callable[[OpSpec], object]] = {
    # One library may hold code for many architectures: its record says for which.
    "target": lambda spec: spec.target.device,
    "torch_target": lambda spec: spec.torch_target if spec.abi in abi.ON_STABLE else "",
    "sources": _sources,
    "include_dirs": lambda spec: _include_dirs(spec) if spec.include_dirs else [],
    "cxx_flags": lambda spec: _named(spec.cxx_flags, spec),
    "device_flags": lambda spec: _named(spec.device_flags, spec),
    "link_flags": lambda spec: _named(spec.link_flags, spec),
    "groups": lambda spec: _groups(spec) if spec.groups else [],
    "roots": lambda spec: [
        (root.name, root.include if kernel_roots.has_headers(root) else "") for root in spec.declared_roots
    ],
}
"""The fields whose value in the description is not the spec's own."""
