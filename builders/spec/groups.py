"""Groups of sources: a part of an op's sources with flags, include folders and architectures of its own.

Imported only if a builder declares `groups` or `architectures`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.accelerator import archs
from opforge.accelerator.target import Target
from opforge.errors import BuilderError, SettingError

from . import by_device, op_spec

if TYPE_CHECKING:
    from .declaration import Declaration

KEYS = ("sources", "devices", "architectures", "include_dirs", "define_macros", "extra_compile_args")
"""What a group may say. All have the meaning of the builder's attribute of that name."""
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


def requested_target(declared: Declaration, target: Target) -> Target:
    """Returns the target of the sources of no group: the architectures that the op declares replace the target's.

    If every source of the device is in a group with architectures, they are those of the groups. Raises BuilderError.
    """
    builder, devices, device = type(declared).__name__, tuple(declared.devices), target.device
    own = architectures(builder, "architectures", declared.architectures, device, devices)
    groups = _groups(builder, declared.groups, device, devices)
    sources = () if callable(declared.sources) else declared.sources  # a method of DeepSpeed's
    rest = op_spec.listed(builder, "sources", sources, device, devices)
    if not own and not _is_of_device(rest) and all(group.arch for group in groups if _is_of_device(group.sources)):
        own = _joined(device, [group.arch for group in groups])
    return Target(device, own) if own else target


def resolve(builder: str, value: Any, rest: Sequence[str], target: Target, devices: tuple[str, ...]) -> Grouped:
    """Returns the groups that are built for the target. `rest` are the sources of no group. Raises BuilderError."""
    groups = _groups(builder, value, target.device, devices)
    names = [os.path.normpath(name) for name in (*rest, *(name for group in groups for name in group.sources))]
    for name in names:
        if names.count(name) > 1:
            raise BuilderError(builder, f"{name!r} is named twice among its sources", "Name it in one group")
    if not any(group.arch for group in groups):
        return Grouped(groups, target, ())
    compiled = [group.arch or target.arch for group in groups if _is_of_device(group.sources)]
    compiled += [target.arch] if _is_of_device(rest) else []
    arch = _joined(target.device, compiled)
    return Grouped(groups, Target(target.device, arch), target.arch if arch != target.arch else ())


def architectures(builder: str, name: str, value: Any, device: str, devices: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the architectures for a device, in canonical form; none for the CPU. Raises BuilderError."""
    if value and device != "cpu" and not isinstance(value, Mapping) and len({*devices} - {"cpu"}) > 1:
        others = [other for other in devices if other != "cpu"]
        expected = "{" + ", ".join(f'"{other}": [...]' for other in others) + "}"
        raise BuilderError(
            builder, f"{name}={value!r} is for {' and '.join(others)} alike", f"Write {name} = {expected}"
        )
    if isinstance(value, Mapping) and "cpu" in value:
        advice = 'The level of code for the CPU is the target\'s: use flags such as "-mavx512f" for more'
        raise BuilderError(builder, f"{name} has the key 'cpu'", advice)
    words = op_spec.listed(builder, name, value, device, devices)
    return _joined(device, [_parsed(builder, name, word, device) for word in words]) if device != "cpu" else ()


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


def _groups(builder: str, value: Any, device: str, devices: tuple[str, ...]) -> tuple[SourceGroup, ...]:
    groups = enumerate(listed(builder, value))
    resolved = [_group(builder, f"groups[{number}]", group, device, devices) for number, group in groups]
    return tuple(group for group in resolved if group)


def listed(builder: str, value: Any) -> list[Mapping[str, Any]]:
    """Returns the groups of a declaration. Raises BuilderError for what is no list of dicts."""
    if isinstance(value, (list, tuple)) and all(isinstance(group, Mapping) for group in value):
        return [*value]
    raise BuilderError(builder, f"groups={value!r}", 'Expected a list of dicts: [{"sources": ["a.cu"], ...}]')


def _group(
    builder: str, name: str, value: Mapping[str, Any], device: str, devices: tuple[str, ...]
) -> SourceGroup | None:
    """Returns the group; None if it is not built for the device. What it says is checked all the same."""
    for key in value:
        if key not in KEYS:
            raise BuilderError(builder, f"{name} has the key {key!r}", _advice(key))
    own = op_spec.words(builder, f"{name}['devices']", value.get("devices", devices))
    by_device.check_members(builder, f"{name}['devices']", own, devices)
    if not value.get("sources"):
        raise BuilderError(builder, f"{name} names no sources", 'Write "sources": [...]')

    def words(key: str) -> tuple[str, ...]:
        return op_spec.listed(builder, f"{name}[{key!r}]", value.get(key, ()), device, own)

    arch = architectures(builder, f"{name}['architectures']", value.get("architectures", ()), device, own)
    flags = value.get("extra_compile_args", ())
    cxx_flags, device_flags = op_spec.compile_args(builder, f"{name}['extra_compile_args']", flags, device, own)
    group = SourceGroup(
        sources=words("sources"),
        include_dirs=words("include_dirs"),
        defines=op_spec.macros(builder, value.get("define_macros", ()), device, own),
        cxx_flags=cxx_flags,
        device_flags=device_flags,
        arch=arch,
    )
    return group if device in own and group.sources else None


def _advice(key: object) -> str:
    """Returns the line to write instead of a key that no group has."""
    word = str(key).replace("-", "_")
    if word in HUB_WORDS:
        return f"Write {HUB_WORDS[word]}"
    near = by_device.similar(word, KEYS)
    return (f'Write "{near}": [...]. ' if near else "") + f"The keys of a group are {', '.join(KEYS)}"
