"""Groups of sources: a part of an op's sources with flags, include folders and architectures of its own.

Imported only if a builder declares `groups` or `architectures`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.errors import BuilderError, SettingError

from . import by_device
from .attributes import GROUP, declared_in
from .by_device import DeviceScope, words

KEYS = declared_in(GROUP)
"""The keys of a group. Each has the meaning of the builder's attribute of that name."""
HUB_WORDS = {
    "src": '"sources": [...]',
    "include": '"include_dirs": [...]',
    "backend": '"devices": [...]',
    "depends": '"include_dirs": [...], with the folder of these headers',
    "cuda_capabilities": '"architectures": [...]',
    "rocm_archs": '"architectures": [...]',
    "cxx_flags": '"extra_compile_args": {"cxx": [...]}',
    "cuda_flags": '"extra_compile_args": {"cuda": [...]}',
    "hip_flags": '"extra_compile_args": {"hip": [...]}',
    "sycl_flags": '"extra_compile_args": {"xpu": [...]}',
}
"""A word of a hub kernel's build.toml -> what to write instead."""
HOST_SUFFIXES = (".c", ".C", ".cc", ".cpp", ".cxx", ".c++", ".s", ".S")
"""The sources that the host's compiler compiles. All others hold code for the device."""


class SourceGroup(NamedTuple):
    """A group, checked and resolved for one target. Its sources are among the spec's."""

    sources: tuple[str, ...]
    include_dirs: tuple[str, ...] = ()
    defines: tuple[tuple[str, str], ...] = ()
    cxx_flags: tuple[str, ...] = ()
    device_flags: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()
    """The architectures that it is compiled for; empty for those of the op's other sources."""


class Grouped(NamedTuple):
    """The groups of an op, and what follows from their architectures."""

    groups: tuple[SourceGroup, ...]
    target: Target
    """With every architecture that a source of the device is compiled for."""
    own_arch: tuple[str, ...]
    """The architectures of the sources of no group, if they are not the target's; otherwise empty."""


def requested_target(declared: Any, target: Target) -> Target:
    """Returns the target of the sources of no group: the architectures that the op declares replace the target's.

    If every source of the device is in a group with architectures, they are those of the groups. Raises BuilderError.
    """
    scope = DeviceScope(type(declared).__name__, target.device, tuple(declared.devices))
    own = architectures(scope, "architectures", declared.architectures)
    groups = _groups(scope, declared.groups)
    sources = () if callable(declared.sources) else declared.sources  # a method of DeepSpeed's
    rest = scope.listed("sources", sources)
    if not own and not _is_of_device(rest) and all(group.arch for group in groups if _is_of_device(group.sources)):
        own = _joined(target.device, [group.arch for group in groups])
    return Target(target.device, own) if own else target


def resolve(scope: DeviceScope, value: Any, rest: Sequence[str], target: Target) -> Grouped:
    """Returns the groups that are built for the target. `rest` are the sources of no group. Raises BuilderError."""
    groups = _groups(scope, value)
    names = [os.path.normpath(name) for name in (*rest, *(name for group in groups for name in group.sources))]
    for name in names:
        if names.count(name) > 1:
            raise BuilderError(scope.builder, f"{name!r} is named twice among its sources", "Name it in one group")
    if not any(group.arch for group in groups):
        return Grouped(groups, target, ())
    compiled = [group.arch or target.arch for group in groups if _is_of_device(group.sources)]
    compiled += [target.arch] if _is_of_device(rest) else []
    arch = _joined(target.device, compiled)
    return Grouped(groups, Target(target.device, arch), target.arch if arch != target.arch else ())


def architectures(scope: DeviceScope, name: str, value: Any) -> tuple[str, ...]:
    """Returns the architectures for a device, in canonical form; none for the CPU. Raises BuilderError."""
    builder, device, devices = scope.builder, scope.device, scope.devices
    if value and device != "cpu" and not isinstance(value, Mapping) and len({*devices} - {"cpu"}) > 1:
        others = [other for other in devices if other != "cpu"]
        expected = "{" + ", ".join(f'"{other}": [...]' for other in others) + "}"
        raise BuilderError(
            builder, f"{name}={value!r} is for {' and '.join(others)} alike", f"Write {name} = {expected}"
        )
    if isinstance(value, Mapping) and "cpu" in value:
        advice = 'The level of code for the CPU is the target\'s: use flags such as "-mavx512f" for more'
        raise BuilderError(builder, f"{name} has the key 'cpu'", advice)
    named = scope.listed(name, value)
    return _joined(device, [_parsed(builder, name, word, device) for word in named]) if device != "cpu" else ()


def _parsed(builder: str, name: str, word: str, device: str) -> tuple[str, ...]:
    try:
        is_listed = device in archs.VARIABLES
        arch = archs.parse_list(device, name, word) if is_listed else Target.parse(f"{device}:{word}").arch
    except SettingError as error:
        raise BuilderError(builder, f"{name} has {word!r}", f"Expected {error.expected}") from error
    if not arch or "native" in arch:
        raise BuilderError(builder, f"{name} has {word!r}", "Expected architectures by name, such as 9.0a or gfx942")
    return arch


def _joined(device: str, lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Returns all architectures once. The PTX of a list is that of its own newest architecture."""
    return archs.canonical(device, [code for arch in lists for code in archs.resolve_ptx(arch)])


def _is_of_device(sources: Iterable[str]) -> bool:
    return any(not name.endswith(HOST_SUFFIXES) for name in sources)


def _groups(scope: DeviceScope, value: Any) -> tuple[SourceGroup, ...]:
    groups = enumerate(listed(scope.builder, value))
    resolved = [_group(scope, f"groups[{number}]", group) for number, group in groups]
    return tuple(group for group in resolved if group)


def listed(builder: str, value: Any) -> list[Mapping[str, Any]]:
    """Returns the groups of a declaration. Raises BuilderError unless it is a list of dicts."""
    if isinstance(value, (list, tuple)) and all(isinstance(group, Mapping) for group in value):
        return [*value]
    raise BuilderError(builder, f"groups={value!r}", 'Expected a list of dicts: [{"sources": ["a.cu"], ...}]')


def _group(scope: DeviceScope, name: str, value: Mapping[str, Any]) -> SourceGroup | None:
    """Returns the group; None if it is not built for the device. What it says is checked all the same."""
    builder, devices = scope.builder, scope.devices
    for key in value:
        if key not in KEYS:
            raise BuilderError(builder, f"{name} has the key {key!r}", _advice(key))
    own = DeviceScope(builder, scope.device, words(builder, f"{name}['devices']", value.get("devices", devices)))
    by_device.check_members(builder, f"{name}['devices']", own.devices, devices)
    if not value.get("sources"):
        raise BuilderError(builder, f"{name} names no sources", 'Write "sources": [...]')

    arch = architectures(own, f"{name}['architectures']", value.get("architectures", ()))
    flags = value.get("extra_compile_args", ())
    cxx_flags, device_flags = own.compile_args(f"{name}['extra_compile_args']", flags)
    group = SourceGroup(
        sources=own.listed(f"{name}['sources']", value["sources"]),
        include_dirs=own.listed(f"{name}['include_dirs']", value.get("include_dirs", ())),
        defines=own.macros(value.get("define_macros", ())),
        cxx_flags=cxx_flags,
        device_flags=device_flags,
        arch=arch,
    )
    return group if scope.device in own.devices and group.sources else None


def _advice(key: object) -> str:
    """Returns the line to write instead of a key that no group has."""
    word = str(key).replace("-", "_")
    if word in HUB_WORDS:
        return f"Write {HUB_WORDS[word]}"
    near = by_device.similar(word, KEYS)
    return (f'Write "{near}": [...]. ' if near else "") + f"The keys of a group are {', '.join(KEYS)}"
