"""What a builder declares, for the type checker. `OpBuilder` documents these attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from .kernel_roots import KernelRoot

Words = Sequence[str] | Mapping[str, Sequence[str]]
"""A list, or lists by device."""
Macros = Sequence[tuple[str, str | None]] | Mapping[str, Any]
"""Pairs or a dict, or these by device."""


class Declaration(Protocol):
    """A builder, or another object with these attributes."""

    name: ClassVar[str]
    sources: ClassVar[Words]
    abi: ClassVar[str | Mapping[str, str]]
    version: ClassVar[str]
    devices: ClassVar[Sequence[str]]
    architectures: ClassVar[Words]
    groups: ClassVar[Sequence[Mapping[str, Any]]]
    requires_torch: ClassVar[str]
    include_dirs: ClassVar[Words]
    kernel_roots: ClassVar[Sequence[KernelRoot]]
    define_macros: ClassVar[Macros]
    extra_compile_args: ClassVar[Words]
    extra_link_args: ClassVar[Words]
    libraries: ClassVar[Words]
    torch_target: ClassVar[str]
    fakes: ClassVar[Mapping[str, Callable[..., Any]]]
    signatures: ClassVar[Mapping[str, tuple[Any, Sequence[Any]]]]
    toolchain: ClassVar[str | Mapping[str, str]]
    folder: ClassVar[str]
    debug: bool
    sanitize: str
    portable: bool
