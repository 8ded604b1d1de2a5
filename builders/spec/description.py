"""What identifies an op: for each field of `OpSpec` in which keys it is, and the description.

The *description* names the op and not the compiler: it finds prebuilt entries. The *plan key* is everything that is
known before a compiler starts. The key of a remembered look-up holds every field, with all paths.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from opforge import formats
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of

from . import abi, kernel_roots

if TYPE_CHECKING:
    from opforge.cache.records.inputs import RootedPath

    from .op_spec import OpSpec


class Enters:
    """Whether a field is in the keys; `why` is the reason where it is not."""

    __slots__ = ("description", "plan", "why")

    def __init__(self, description: bool, plan: bool, why: str = "") -> None:
        self.description, self.plan, self.why = description, plan, why


IDENTITY = {
    "name": Enters(True, True),
    "builder": Enters(False, False, "it is for messages"),
    "package": Enters(False, False, "it says where to look for prebuilt entries, not for which"),
    "version": Enters(True, True),
    "abi": Enters(True, True),
    "target": Enters(
        True,
        True,
        "the description holds the device alone: which level or architecture fits is decided"
        " by the records of the entries",
    ),
    "devices": Enters(False, False, "it says which targets are possible; the target is one of them"),
    "torch_target": Enters(True, True, "for the stable ABI alone"),
    "sources": Enters(True, True, "by root and path; the description also holds their contents"),
    "include_dirs": Enters(True, True, "by root and path; what they hold is compared after the key has matched"),
    "defines": Enters(True, True),
    "cxx_flags": Enters(True, True),
    "device_flags": Enters(True, True),
    "link_flags": Enters(True, True),
    "libraries": Enters(True, True),
    "roots": Enters(
        True, True, "by name and order, and which of them have headers. The plan also holds where each source lies"
    ),
    "debug": Enters(True, True),
    "sanitize": Enters(True, True),
    "portable": Enters(
        False, False, "the plan holds the compiler that it selects; a prebuilt entry's record says what it needs"
    ),
    "sysroot": Enters(False, False, "as for `portable`"),
    "toolchain": Enters(False, False, "as for `portable`"),
    "kernels": Enters(True, True),
    "extension_libraries": Enters(True, True),
    "groups": Enters(True, True),
    "own_arch": Enters(False, True, "as for the architectures of `target`"),
    "requires_torch": Enters(True, True),
}
"""Field of OpSpec -> the keys that it is in. A test changes each field and compares the keys with this table."""
FIELDS = tuple(name for name, enters in IDENTITY.items() if enters.description)

LATER_FIELDS = ("groups", "requires_torch")
"""The fields that the first opforges did not have. They are in a key only if they are set: no other key has changed."""


def describe(spec: OpSpec) -> dict[str, object]:
    """Returns the fields that identify the op, JSON-able, without a path or a time.

    Reads the op's own sources. Raises SourceNotFoundError if one of them, or an include folder, is missing.
    """
    abi.check(spec.abi, spec.name, spec.torch_target)
    fields = {name: _VALUES[name](spec) if name in _VALUES else getattr(spec, name) for name in FIELDS}
    for name in LATER_FIELDS:
        if not fields[name]:
            del fields[name]
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
    "torch_target": lambda spec: spec.torch_target if spec.abi == abi.STABLE else "",
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
