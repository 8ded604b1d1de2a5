"""Which kernel a layer gets: entries with conditions, of which the most specific one that fits is taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

from opforge.accelerator import archs
from opforge.builders.declaration.by_device import similar
from opforge.errors import KernelMappingError
from opforge.foundation.arguments import wrong

MODES = frozenset({"inference", "training", "compiled"})
ARCHITECTURE = re.compile(rf"{archs.CUDA.pattern}|gfx[0-9a-f]+(:\w+[+-])*")
EXPECTED = '"ORG/NAME:Layer", "ORG/NAME@VERSION:Layer", a LayerKernel, or a list of these'


@dataclass(frozen=True)
class LayerKernel:
    """A kernel for a layer, and the conditions of its use. An omitted condition is always met.

    `layer` is a class of the package `package`, among its `layers` or beside them, or a class itself; or both in one
    text, as a mapping has it: "ORG/NAME:Layer", "ORG/NAME@VERSION:Layer". `device` is a type of torch's devices;
    `architectures` are names such as "sm_90"; `mode` joins some of inference, training and compiled by "+"; `condition`
    gets the module.
    """

    layer: str | type
    package: str = ""
    version: str | int | None = None
    device: str = ""
    architectures: Sequence[str] = ()
    mode: str = ""
    condition: Callable[[Any], bool] | None = None
    is_for_any_model: ClassVar[bool] = False
    """Whether it is in a mapping for layers of any model, of which one model has a few."""

    def __post_init__(self) -> None:
        """Takes the package out of a layer's text that names it. Raises SettingError for a field of another type."""
        if problem := wrong(type(self), (), vars(self)):
            raise problem
        if isinstance(self.layer, str) and ":" in self.layer and not self.package:
            package, _, layer = self.layer.rpartition(":")
            package, _, version = package.partition("@")
            object.__setattr__(self, "layer", layer)
            object.__setattr__(self, "package", package)
            if version and self.version is None:
                object.__setattr__(self, "version", version)

    def __str__(self) -> str:
        """Returns the package with the layer's name."""
        name = self.layer if isinstance(self.layer, str) else self.layer.__qualname__
        version = "" if self.version is None else f"@{self.version}"
        return f"{self.package}{version}:{name}" if self.package else name

    @property
    def modes(self) -> frozenset[str]:
        """Returns the modes that it is for; empty for all."""
        return modes_of(self.mode, str(self)) if self.mode else frozenset()

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """Returns how specific it is: a condition first, then architectures, the device, the modes."""
        return self.condition is not None, bool(self.architectures), bool(self.device), len(self.modes)

    def unfit(self, module: Any) -> str:
        """Returns why it is not for a module on its device, or an empty text."""
        return "" if self.condition is None or self.condition(module) else "its condition does not hold"

    def load(self) -> type:
        """Returns the layer's class. Raises KernelMappingError if there is none, and what `get_kernel` raises."""
        if not isinstance(self.layer, str):
            return self.layer
        from opforge.packages.load.get_kernel import get_kernel

        module = get_kernel(self.package, self.version)
        names: set[str] = set()
        for place in (getattr(module, "layers", module), module):
            found = getattr(place, self.layer, None)
            if isinstance(found, type):
                return found
            names.update(name for name, value in vars(place).items() if isinstance(value, type))
        problem = f"the package {self.package} has no layer {self.layer!r}"
        raise KernelMappingError(str(self), problem, f"one of its classes: {', '.join(sorted(names)) or 'none'}")


Entries = str | LayerKernel | Sequence["str | LayerKernel"]


def modes_of(text: str, where: str) -> frozenset[str]:
    """Returns the modes that a text joins by "+". Raises KernelMappingError for another word, or two that exclude."""
    modes = frozenset(text.split("+")) if isinstance(text, str) else frozenset({text})
    if not modes <= MODES or {"inference", "training"} <= modes:
        raise KernelMappingError(where, f"mode={text!r}", 'inference, training or compiled, as in "training+compiled"')
    return modes


def parse(mapping: Mapping[str | type, Entries]) -> dict[str, list[LayerKernel]]:
    """Returns the entries of each class, by its name, the most specific one first.

    Raises KernelMappingError for an entry that is none, or two that are equally specific where both fit.
    """
    parsed: dict[str, list[LayerKernel]] = {}
    for key, value in mapping.items():
        name = f"{key.__module__}.{key.__qualname__}" if isinstance(key, type) else key
        if not isinstance(name, str):
            raise KernelMappingError(ascii(name)[:100], "it names no class", "the name of a class, or the class")
        values = value if isinstance(value, (list, tuple)) else [value]
        entries = [_entry(part, name) for part in values]
        for one, other in combinations(entries, 2):
            if _is_tie(one, other):
                raise KernelMappingError(name, f"{one} and {other} fit the same layers", "one that is more specific")
        parsed[name] = sorted(entries, key=lambda entry: entry.rank, reverse=True)
    return parsed


def _entry(value: object, name: str) -> LayerKernel:
    if isinstance(value, LayerKernel):
        value.modes  # noqa: B018 - a wrong one is an error now
        if isinstance(value.layer, str) and (not value.package or not value.layer.isidentifier()):
            raise KernelMappingError(name, f"{value.layer!r} is of no package", EXPECTED)
        _check_names(value)
        return value
    _package, colon, layer = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not layer.isidentifier():
        raise KernelMappingError(name, f"{ascii(value)[:100]} is not a kernel of a layer", EXPECTED)
    return LayerKernel(str(value))


def _check_names(entry: LayerKernel) -> None:
    """Raises KernelMappingError for a device or an architecture that there is none of: it would fit nowhere."""
    if entry.device:
        import torch

        try:
            torch.device(entry.device)
        except RuntimeError as error:
            known = re.findall(r"\w+", str(error).partition("Expected one of ")[2].partition(" device")[0])
            near = similar(entry.device, known)
            expected = "a type of torch's devices, such as cpu or cuda" + (f"; did you mean {near!r}" if near else "")
            raise KernelMappingError(str(entry), f"device={entry.device!r}", expected) from None
    for name in entry.architectures:
        if not ARCHITECTURE.fullmatch(name):
            digits = re.sub(r"\D", "", name)
            near = f"; did you mean 'sm_{digits}'" if digits and "gfx" not in name else ""
            raise KernelMappingError(str(entry), f"architectures names {name!r}", f"sm_90, gfx942 or the like{near}")


def _is_tie(one: LayerKernel, other: LayerKernel) -> bool:
    """Returns whether both may fit a layer and neither is more specific."""
    if one.rank != other.rank or one.device != other.device:
        return False
    is_apart = one.architectures and not {*one.architectures} & {*other.architectures}
    return not is_apart and not {"inference", "training"} <= one.modes | other.modes


def problem(entry: LayerKernel, module: Any, device: str, architectures: Sequence[str], modes: frozenset[str]) -> str:
    """Returns why an entry is not for a module, or an empty text."""
    if entry.device and entry.device != device:
        return f"it is for {entry.device}, and the layer is on {device}"
    if entry.architectures and not {*entry.architectures} & {*architectures}:
        here = ", ".join(architectures) or "none"
        return f"it is for {', '.join(entry.architectures)}, and the machine has {here}"
    if not entry.modes <= modes:
        return f"it is for {entry.mode}, and the scope for {'+'.join(sorted(modes))}"
    return entry.unfit(module)
