"""Attributes that all builders of a package share: the table FOR_ALL_BUILDERS, beside BUILDERS.

    FOR_ALL_BUILDERS = {
        "kernel_roots": [("acme", "opforge_acme", "csrc")],  # the arguments of `kernel_root`
        "include_dirs": ["include"],
        "extra_compile_args": {"cxx": ["-fno-math-errno"], "acme": ["-O3"]},
        "libraries": ["acme_runtime"],
    }

It is added to what a builder declares, and so it is part of the op's spec, its plan and its keys. Imported only for a
builder to which such a table applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.errors import BuilderError
from opforge.fast_path.lookup import FOR_ALL

from . import kernel_roots
from .attributes import PACKAGE, declared_in
from .by_device import DeviceScope

NAMES = tuple(sorted(declared_in(PACKAGE)))
"""The attributes of a builder that the table may have."""


class ForAll(NamedTuple):
    """Attributes that the tables of a builder's packages add to it, for one device."""

    kernel_roots: tuple[kernel_roots.KernelRoot, ...] = ()
    include_dirs: tuple[str, ...] = ()
    defines: tuple[tuple[str, str], ...] = ()
    cxx_flags: tuple[str, ...] = ()
    device_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


def read(tables: Mapping[str, Any], device: str, devices: tuple[str, ...]) -> ForAll:
    """Returns the attributes in the tables for a device, joined: the builder's own package comes first.

    Raises BuilderError, which names the table, for a key or a value that is wrong.
    """
    parts = [_part(f"{package}.{FOR_ALL}", table, device, devices) for package, table in tables.items()]
    joined: dict[str, Any] = {
        name: tuple(value for part in parts for value in getattr(part, name)) for name in ForAll._fields
    }
    return ForAll(**joined)


def _part(label: str, table: Any, device: str, devices: tuple[str, ...]) -> ForAll:
    if not isinstance(table, Mapping):
        raise BuilderError(label, f"it is {table!r}", f"Expected a dict with some of {', '.join(NAMES)}")
    for name in table:
        if name not in NAMES:
            raise BuilderError(label, f"it has the key {name!r}", f"Expected some of {', '.join(NAMES)}")
    # The table may be for more devices than this op has.
    named = {key for value in table.values() if isinstance(value, Mapping) for key in value}
    scope = DeviceScope(label, device, (*devices, *sorted(map(str, named - {"cxx", "nvcc", "all", *devices}))))
    cxx_flags, device_flags = scope.compile_args("extra_compile_args", table.get("extra_compile_args", ()))
    return ForAll(
        kernel_roots=tuple(_root(label, place) for place in table.get("kernel_roots", ())),
        include_dirs=scope.listed("include_dirs", table.get("include_dirs", ())),
        defines=scope.macros(table.get("define_macros", ())),
        cxx_flags=cxx_flags,
        device_flags=device_flags,
        link_flags=scope.listed("extra_link_args", table.get("extra_link_args", ())),
        libraries=scope.listed("libraries", table.get("libraries", ())),
    )


def _root(label: str, place: Any) -> kernel_roots.KernelRoot:
    if isinstance(place, kernel_roots.KernelRoot):
        return place
    if (
        not isinstance(place, (tuple, list))
        or not 2 <= len(place) <= 4
        or not all(isinstance(part, str) for part in place)
    ):
        expected = 'Expected ("prefix", "package", "folder"), the arguments of kernel_root'
        raise BuilderError(label, f"kernel_roots has {place!r}", expected)
    return kernel_roots.prefixed_root(label, *place)
