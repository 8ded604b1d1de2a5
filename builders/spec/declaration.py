"""From the attributes that a builder class declares to an `OpSpec`: checks them and resolves them for one target."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Protocol

from opforge import settings
from opforge.accelerator.target import Target
from opforge.errors import BuilderError

from . import abi as abis
from . import kernel_roots
from .op_spec import OpSpec

LONGEST_NAME = 200
"""Bytes of an op's name. The name of a file, which has more in it than the op's name, may have 255."""


class Declaration(Protocol):
    """What a builder declares; see `OpBuilder` for each attribute."""

    name: ClassVar[Any]
    abi: ClassVar[Any]
    version: ClassVar[Any]
    devices: ClassVar[Any]
    include_dirs: ClassVar[Any]
    kernel_roots: ClassVar[Any]
    defines: ClassVar[Any]
    cxx_flags: ClassVar[Any]
    device_flags: ClassVar[Any]
    link_flags: ClassVar[Any]
    libraries: ClassVar[Any]
    torch_target: ClassVar[Any]
    fakes: ClassVar[Any]
    signatures: ClassVar[Any]
    toolchain: ClassVar[Any]
    folder: ClassVar[Any]

    @property
    def sources(self) -> Any: ...

    debug: bool
    sanitize: str
    portable: bool


def resolve(declared: Declaration, target: Target) -> OpSpec:
    """Returns the spec of a declaration for a target. Raises BuilderError, naming the attribute that is wrong."""
    kind = type(declared)
    builder, abi = kind.__name__, declared.abi
    _check_name(builder, declared.name, abi)
    sources = words(builder, "sources", declared.sources)
    if not sources:
        raise BuilderError(builder, "it names no sources", "Give it at least one file in `sources`")
    if declared.fakes and abi == abis.PLAIN:
        advice = "They are for ops of torch's, which plain functions are not"
        raise BuilderError(builder, f"fakes with abi={abi!r}", advice)
    if declared.signatures and abi != abis.PLAIN:
        raise BuilderError(builder, f"signatures with abi={abi!r}", "They are for abi='c' alone")
    own = kernel_roots.KernelRoot(kernel_roots.OWN, declared.folder or kernel_roots.folder_of(kind), "")
    roots = (own, *declared.kernel_roots, kernel_roots.OPFORGE)
    kernel_roots.check(builder, roots)
    return OpSpec(
        name=declared.name,
        builder=builder,
        package=kind.__module__.partition(".")[0],
        version=declared.version,
        abi=abi,
        target=target,
        devices=tuple(declared.devices),
        torch_target=declared.torch_target,
        sources=sources,
        include_dirs=words(builder, "include_dirs", declared.include_dirs),
        defines=tuple(sorted(declared.defines.items())),
        cxx_flags=words(builder, "cxx_flags", declared.cxx_flags),
        device_flags=tuple(declared.device_flags.get(target.device, ())),
        link_flags=words(builder, "link_flags", declared.link_flags),
        libraries=words(builder, "libraries", declared.libraries),
        roots=roots,
        debug=declared.debug,
        sanitize=declared.sanitize,
        portable=declared.portable,
        sysroot=settings.sysroot() if declared.portable else "",
        toolchain=declared.toolchain,
    )


def _check_name(builder: str, name: object, abi: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or len(os.fsencode(name)) > LONGEST_NAME:
        expected = f"an identifier of at most {LONGEST_NAME} bytes"
        raise BuilderError(builder, f"name={name!r}", f"Expected {expected}, such as 'fused_adam'")
    if abi == abis.TORCH and not name.isascii():
        raise BuilderError(builder, f"name={name!r}", "Expected ASCII: it is a Python module's")


def words(builder: str, name: str, values: Any) -> tuple[str, ...]:
    """Returns the strings or paths of a list as strings. Raises BuilderError for anything else, such as one string."""
    try:
        if not isinstance(values, (str, bytes, os.PathLike)):
            return tuple(os.fsdecode(value) for value in values)
    except TypeError:
        pass
    raise BuilderError(builder, f"{name}={values!r}", "Expected a list of strings, each a word of its own")
