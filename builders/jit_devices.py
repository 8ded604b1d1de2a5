"""Arguments of `opforge.load` that may be dicts by device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opforge.errors import BuilderError

from .jit_sources import detect_abi, read_sources
from .spec.by_device import ALL, similar
from .toolchains import DEVICES


def each(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns what the function returns for the value or, of values by device, for each."""
    return {key: function(part) for key, part in value.items()} if isinstance(value, Mapping) else function(value)


def is_by_device(macros: Any) -> bool:
    """Returns whether definitions are a dict by device, not one of values."""
    return isinstance(macros, Mapping) and any(isinstance(part, (list, tuple, Mapping)) for part in macros.values())


def listed_groups(op: str, groups: Any) -> list[Mapping[str, Any]]:
    """Returns the groups. Raises BuilderError for what is no list of dicts."""
    if not groups:
        return []
    from .spec.groups import listed

    return listed(op, groups)


def after(first: tuple[Any, ...], value: Any) -> Any:
    """Returns a list, or lists by device, with `first` before it on all devices."""
    return {**value, ALL: (*first, *value.get(ALL, ()))} if isinstance(value, Mapping) else (*first, *value)


def files_of(value: Any, device: str = "") -> list[str]:
    """Returns the files of a list or, of lists by device, of all or of those for this device."""
    lists = [value]
    if isinstance(value, Mapping):
        lists = [part for key, part in value.items() if not device or key in (ALL, device)]
    return [path for part in lists for path in part]


def known_devices(op: str, sources: Mapping[Any, Any]) -> tuple[str, ...]:
    """Returns the devices of sources by device. Raises BuilderError for one that opforge has no compiler for."""
    devices = tuple(key for key in sources if key != ALL)
    expected = f"Expected {', '.join(DEVICES)}, and {ALL!r} for what all of them have"
    if not devices:
        raise BuilderError(op, f"sources={sources!r} names no device", expected)
    for device in devices:
        if device not in DEVICES:
            near = similar(device, DEVICES)
            line = f'Write sources = {{"{near}": ...}}. ' if near else ""
            raise BuilderError(op, f"sources has the key {device!r}", line + expected)
    return devices


def detected_abi(sources: Any, groups: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> Any:
    """Returns the ABI that the sources are written for; of sources by device, the ABI of each device."""

    def detect(device: str) -> str:
        lists = [group["sources"] for group in groups if not device or device in group.get("devices", devices)]
        return detect_abi(read_sources([path for part in (sources, *lists) for path in files_of(part, device)]))

    return {device: detect(device) for device in devices} if isinstance(sources, Mapping) else detect("")


def frozen(value: Any) -> Any:
    """Returns the value with tuples in place of its dicts and lists, to be the key of a dict."""
    if isinstance(value, Mapping):
        return tuple((key, frozen(part)) for key, part in value.items())
    return tuple(map(frozen, value)) if isinstance(value, (list, tuple)) else value
