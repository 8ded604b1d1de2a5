"""A Triton kernel as data: the file of its function, and the types and constants it is compiled for ahead of time."""

from __future__ import annotations

import collections.abc  # named in full: pdoc evaluates the annotations of Kernel outside this module
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from opforge.errors import BuilderError

ALIGNMENT = 16
SCALARS = {"i1": "?7x", "i32": "i4x", "i64": "q", "fp32": "f4x", "fp64": "d"}
"""Scalar type -> the `struct` format that packs it into a slot of eight bytes."""
POINTEES = ("i1", "i8", "u8", "i16", "i32", "i64", "fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5")

NAME = r"[\w.-]+(\[\w+=[^\s\]]+\])?"
"""Of a kernel; what is in brackets is a config, as `Kernel.variant` names it."""


class Kernel(NamedTuple):
    """One signature of one Triton function.

    `arguments` maps the function's run-time arguments, in its own order, to their types as Triton names them, such as
    `*bf16`, `i32`, `fp32`. A `:16` after the type promises that the value (of a pointer: the address) is divisible by
    16. Wide loads need that, and every launch checks it.
    """

    name: str
    """The name that launches use; no two signatures have the same."""
    source: str
    """The file, as a path below one of the builder's kernel roots."""
    function: str
    arguments: collections.abc.Mapping[str, str]
    constants: collections.abc.Mapping[str, int | float | bool | str | None] = {}
    """The values of all other arguments: of those that the function declares `tl.constexpr`, and None for a pointer
    that is not passed. "dtype:float16" means Triton's own float16."""
    warps: int = 4
    stages: int = 1
    configs: collections.abc.Sequence[collections.abc.Mapping[str, int]] = ()
    """Configs that `opforge tune` tries: other values of `constants`, `warps` and `stages`. Each is compiled too. A
    launch whose grid depends on them passes a function from the constants to the grid."""

    def text(self) -> str:
        """Returns everything but the source that determines the kernel's code, as canonical JSON. Part of the key."""
        fields = {**self._asdict(), "arguments": list(self.arguments.items()), "constants": dict(self.constants)}
        del fields["configs"]  # they are kernels of their own
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def variant(self, config: collections.abc.Mapping[str, int]) -> Kernel:
        """Returns the kernel of one of its configs."""
        label = ",".join(f"{name}={value}" for name, value in sorted(config.items()))
        others = {name: value for name, value in config.items() if name not in ("warps", "stages")}
        return self._replace(
            name=f"{self.name}[{label}]",
            constants={**self.constants, **others},
            warps=config.get("warps", self.warps),
            stages=config.get("stages", self.stages),
            configs=(),
        )

    def packing(self) -> str:
        """Returns the `struct` format of the run-time arguments: one slot of eight bytes each."""
        return "<" + "".join(
            "Q" if kind.startswith("*") else SCALARS[kind.partition(":")[0]] for kind in self.arguments.values()
        )

    def pointers(self) -> tuple[int, ...]:
        """Returns the positions of the run-time arguments that are tensors."""
        return tuple(at for at, kind in enumerate(self.arguments.values()) if kind.startswith("*"))


def check_kernels(builder: str, kernels: Iterable[Kernel]) -> None:
    """Raises BuilderError if a kernel or a config is declared wrongly, or if two kernels have the same name."""
    names = set()
    for kernel in kernels:
        _check_configs(builder, kernel)
        if kernel.name in names:
            raise BuilderError(builder, f"two kernels are named {kernel.name!r}", "Give each a different name")
        names.add(kernel.name)
        if not re.fullmatch(NAME, kernel.name):
            raise BuilderError(builder, f"a kernel is named {kernel.name!r}", "Expected letters, digits, '_', '-', '.'")
        constants: dict[str, Any] = {**kernel.constants}
        for constant, value in constants.items():
            if not isinstance(value, (int, float, str, type(None))):
                expected = "Expected a number, a bool, a text or None; of a dtype a text such as 'dtype:float16'"
                raise BuilderError(builder, f"{kernel.name}: {constant} is {value!r}", expected)
        for argument, kind in kernel.arguments.items():
            bare, _, promise = str(kind).partition(":")
            is_known = bare[1:] in POINTEES if bare.startswith("*") else bare in SCALARS
            if not is_known or promise not in ("", str(ALIGNMENT)):
                kinds = f"'*' and one of {', '.join(POINTEES)}, or one of {', '.join(SCALARS)}; then optionally ':16'"
                raise BuilderError(builder, f"{kernel.name}: {argument} has the type {kind!r}", f"Expected {kinds}")
        for warps in {kernel.warps, *(config.get("warps", kernel.warps) for config in kernel.configs)}:
            if type(warps) is not int or warps < 1 or warps & (warps - 1):
                raise BuilderError(builder, f"{kernel.name}: warps={warps!r}", "Expected a power of two, such as 4")


def _check_configs(builder: str, kernel: Kernel) -> None:
    for config in kernel.configs:
        unknown = [name for name in config if name not in (*kernel.constants, "warps", "stages")]
        if unknown or not config or not all(type(value) is int and value >= 0 for value in config.values()):
            known = ", ".join([*kernel.constants, "warps", "stages"])
            raise BuilderError(builder, f"{kernel.name}: configs has {dict(config)!r}", f"Expected numbers for {known}")
    if len({frozenset(config.items()) for config in kernel.configs}) < len(kernel.configs):
        raise BuilderError(builder, f"{kernel.name}: two of its configs are equal", "Leave one of them out")


def with_variants(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Returns the kernels that are compiled: each, and those of its configs."""
    return [part for kernel in kernels for part in (kernel, *map(kernel.variant, kernel.configs))]


def kernel_texts(kernels: Iterable[Kernel]) -> dict[str, str]:
    """Returns each kernel's text by its name, as plans and descriptions contain them."""
    return {kernel.name: kernel.text() for kernel in kernels}
