"""Values by device: an attribute may be a dict from a device's name, or "all", to what it is for that device.

Imported only if a builder has such an attribute.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opforge.errors import BuilderError

from .op_spec import words

if TYPE_CHECKING:
    from .op_spec import DeviceScope

ALL = "all"
GPU_COMPILERS = {"cuda": "nvcc", "hip": "nvcc", "xpu": "sycl"}
"""Device -> torch's word for its compiler in `extra_compile_args`, beside the device's own name."""
COMPILERS = frozenset({"cxx", "cpu", "opencl", *GPU_COMPILERS, *GPU_COMPILERS.values()})
"""The keys of `extra_compile_args`, besides the devices that the builder names."""


def parts(scope: DeviceScope, name: str, values: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Returns what `values` has for all devices and then for this one, each with its name for messages.

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
            raise BuilderError(builder, f"{name} has the key {key!r}", f"Write {line}. {expected}")


def check_members(builder: str, name: str, words: Iterable[str], devices: Sequence[str]) -> None:
    """Raises BuilderError for a word that is none of the devices."""
    for word in words:
        if word not in devices:
            near = similar(word, devices)
            line = f'"{near}"' if near else f"devices = {json.dumps([*devices, word])} in the builder, or remove it"
            raise BuilderError(
                builder, f"{name} has {word!r}", f"Write {line}. The op's devices are {', '.join(devices)}"
            )


def similar(word: object, expected: Iterable[str]) -> str:
    """Returns the expected word that is most like this one; empty if none is."""
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
            raise BuilderError(builder, f"{name} has the key {key!r}", f"{line}Expected {', '.join(expected)}")
    lists = {key: words(builder, f"{name}[{key!r}]", part) for key, part in flags.items()}
    if device == "cpu":  # its own sources are C++
        return (*lists.get("cxx", ()), *lists.get("cpu", ())), ()
    return lists.get("cxx", ()), (*lists.get(GPU_COMPILERS.get(device, ""), ()), *lists.get(device, ()))
