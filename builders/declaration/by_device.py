"""Reads declared values: lists of strings, and dicts from a device's name, or "all", to the value for that device."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opforge import errors

ALL = "all"
Words = Sequence[str] | Mapping[str, Sequence[str]]
"""A list, or lists by device."""
Macros = Sequence[tuple[str, str | None]] | Mapping[str, Any]
"""Pairs or a dict, or these by device."""
PLAIN_LISTS = (tuple, list)
"""Checked before `isinstance(..., Mapping)`, whose first call in a process takes a tenth of a hit's time."""
GPU_COMPILERS = {"cuda": "nvcc", "hip": "nvcc", "xpu": "sycl"}
"""Device -> torch's word for its compiler in `extra_compile_args`, beside the device's own name."""
COMPILERS = frozenset({"cxx", "cpu", "opencl", *GPU_COMPILERS, *GPU_COMPILERS.values()})
"""The keys of `extra_compile_args`, besides the devices that the builder names."""
FLAGS_WITH_PATHS = ("-I", "-L", "-T", "-B", "-i", "-Wl,", "-X", "-M", "@")
"""Beginnings of flags that may have a path without a slash or a dot: a cheap test before the exact one."""


class DeviceScope:
    """Reads what a builder declares for one of its devices. Not a NamedTuple: making the class would cost each hit."""

    __slots__ = ("builder", "device", "devices")

    def __init__(self, builder: str, device: str = "", devices: Sequence[str] = ()) -> None:
        self.builder, self.device, self.devices = builder, device, devices

    def compile_args(self, name: str, value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the flags for C++ and those for the device's own sources, from a list or a dict by compiler."""
        if type(value) in PLAIN_LISTS or not isinstance(value, Mapping):
            return words(self.builder, name, value), ()
        return flags_by_compiler(self, name, value)

    def listed(self, name: str, value: Any) -> tuple[str, ...]:
        """Returns the strings of a list or, of lists by device, those for all devices and then for this one."""
        if type(value) in PLAIN_LISTS or not isinstance(value, Mapping):
            return words(self.builder, name, value)
        lists = [words(self.builder, label, part) for label, part in parts(self, name, value)]
        return tuple(word for part in lists for word in part)

    def scalar(self, name: str, value: Any) -> Any:
        """Returns the value or, of values by device, this device's; an empty text if it has none."""
        if type(value) is str or not isinstance(value, Mapping):
            return str.__str__(value) if isinstance(value, str) else value
        return ["", *(part for _name, part in parts(self, name, value))][-1]

    def macros(self, value: Any) -> tuple[tuple[str, str], ...]:
        """Returns (name, value) pairs, sorted by name; an empty value for a name alone. Raises BuilderError."""
        try:
            items = value if type(value) in PLAIN_LISTS or not isinstance(value, Mapping) else value.items()
            pairs = [(name, "" if text is None else text) for name, text in items]
            if all(isinstance(part, str) for pair in pairs for part in pair):
                # str's own: another class may say something else of itself than what is compiled.
                return tuple(sorted({str.__str__(name): str.__str__(text) for name, text in pairs}.items()))
        except (TypeError, ValueError):
            pass
        if isinstance(value, Mapping) and all(isinstance(part, (*PLAIN_LISTS, Mapping)) for part in value.values()):
            of_device = [DeviceScope(self.builder).macros(part) for _name, part in parts(self, "define_macros", value)]
            return tuple(sorted({name: text for part in of_device for name, text in part}.items()))
        expected = 'Expected [("NAME", "value"), ...], None for a name alone'
        raise errors.BuilderError(self.builder, f"define_macros={value!r}", expected)


def parts(scope: DeviceScope, name: str, values: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Returns the entries of `values` for all devices and then for this one, each with its name for messages.

    Raises BuilderError for a key that is no device of the op.
    """
    check_keys(scope.builder, name, values, scope.devices)
    return [(f"{name}[{key!r}]", values[key]) for key in (ALL, scope.device) if key in values]


def check_keys(builder: str, name: str, keys: Iterable[Any], devices: Sequence[str]) -> None:
    """Raises BuilderError for a key that is neither one of the devices nor "all"."""
    for key in keys:
        if key not in (ALL, *devices):
            near = similar(key, (*devices, ALL))
            expected = f"The keys are the op's devices ({', '.join(devices)}) and {ALL!r}"
            line = (
                f'{name} = {{"{near}": ...}}' if near else f"devices = {json.dumps([*devices, str(key)])}, or remove it"
            )
            raise errors.BuilderError(builder, f"{name} has the key {key!r}", f"Write {line}. {expected}")


def check_members(builder: str, name: str, words: Iterable[str], devices: Sequence[str]) -> None:
    """Raises BuilderError for a word that is none of the devices."""
    for word in words:
        if word not in devices:
            near = similar(word, devices)
            line = f'"{near}"' if near else f"devices = {json.dumps([*devices, word])} in the builder, or remove it"
            raise errors.BuilderError(
                builder, f"{name} has {word!r}", f"Write {line}. The op's devices are {', '.join(devices)}"
            )


def similar(word: object, expected: Iterable[str]) -> str:
    """Returns the expected word that is most like this one; empty if none is."""
    import difflib  # only for an error: each load imports this module

    return next(iter(difflib.get_close_matches(str(word), [*expected], n=1)), "")


def flags_by_compiler(
    scope: DeviceScope, name: str, flags: Mapping[Any, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the flags for C++ and those for the device's own sources. Raises BuilderError for an unknown key."""
    builder, device, expected = scope.builder, scope.device, sorted({*COMPILERS, *scope.devices})
    for key in flags:
        if key not in expected:
            near = similar(key, expected)
            line = f'Write "{near}": [...]. ' if near else ""
            raise errors.BuilderError(builder, f"{name} has the key {key!r}", f"{line}Expected {', '.join(expected)}")
    lists = {key: words(builder, f"{name}[{key!r}]", part) for key, part in flags.items()}
    if device == "cpu":  # its own sources are C++
        return (*lists.get("cxx", ()), *lists.get("cpu", ())), ()
    return lists.get("cxx", ()), (*lists.get(GPU_COMPILERS.get(device, ""), ()), *lists.get(device, ()))


def words(builder: str, name: str, values: Any) -> tuple[str, ...]:
    """Returns the strings or paths of a list as strings. Raises BuilderError for anything else, such as one string."""
    try:
        if type(values) in PLAIN_LISTS or not isinstance(values, (str, bytes, os.PathLike, Mapping)):
            return tuple([value if type(value) is str else str.__str__(os.fsdecode(value)) for value in values])
    except TypeError:
        pass
    raise errors.BuilderError(builder, f"{name}={values!r}", "Expected a list of strings, one argument each")


def with_absolute_paths(flags: tuple[str, ...], folder: str) -> tuple[str, ...]:
    """Returns flags with absolute paths in place of relative ones, which count from `folder`."""
    if not any("/" in flag or "." in flag or flag.startswith(FLAGS_WITH_PATHS) for flag in flags):
        return flags
    from .flag_paths import absolute  # most ops have no path in a flag

    return absolute(flags, folder)
