"""`OpSpec`: an op's declaration, checked and resolved for one target."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from opforge import settings
from opforge.accelerator.target import Target
from opforge.errors import BuilderError

from . import abi as abis
from . import installed_torch, kernel_roots
from .kernel_roots import KernelRoot

LONGEST_NAME = 200
"""Bytes of an op's name. The name of a file, which has more in it than the op's name, may have 255."""


class OpSpec(NamedTuple):
    """A frozen value. Equal specs, toolchains and environments have equal plans."""

    name: str
    builder: str
    """The builder class's name, for error messages."""
    package: str
    """The top-level package that declares the builder: its installed folder may hold prebuilt entries."""
    version: str
    abi: str
    target: Target
    """Concrete: no "native", and an architecture wherever one is needed."""
    devices: tuple[str, ...]
    """The devices that the op can be built for."""
    torch_target: str
    sources: tuple[str, ...]
    include_dirs: tuple[str, ...]
    defines: tuple[tuple[str, str], ...]
    """Sorted by name."""
    cxx_flags: tuple[str, ...]
    device_flags: tuple[str, ...]
    """Flags for the sources of the target's device."""
    link_flags: tuple[str, ...]
    libraries: tuple[str, ...]
    roots: tuple[KernelRoot, ...]
    """Where sources are searched, in order: the builder's own folder, its kernel roots, opforge's."""
    debug: bool
    sanitize: str
    portable: bool
    sysroot: str = ""
    """The sysroot that a portable build uses."""
    toolchain: str = ""
    """The toolchain as "module:Class"; empty for the one that serves the target's device."""
    kernels: tuple[tuple[str, str], ...] = ()
    """Triton kernels by name, each with its signature, constants and options as text."""
    extension_libraries: tuple[str, ...] | None = None
    """For a library that is imported without opforge: the torch libraries that it names. It registers its ops itself.
    None for a library that opforge loads."""

    @property
    def mode_flags(self) -> tuple[str, ...]:
        """Returns the compiler flags that `debug` and `sanitize` stand for."""
        flags = ("-g", "-fno-omit-frame-pointer") if self.debug or self.sanitize else ()
        return (*flags, f"-fsanitize={self.sanitize}") if self.sanitize else flags

    @property
    def uses_host_compiler(self) -> bool:
        """Returns whether the host's own compiler, and nothing else, builds the op."""
        return self.target.device == "cpu" and not self.portable and not self.toolchain

    @property
    def declared_roots(self) -> tuple[KernelRoot, ...]:
        """Returns the kernel roots between the builder's own folder and opforge's."""
        return self.roots[1:-1]


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


def root_paths(spec: OpSpec, toolchain_roots: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns where each root of the spec's plan lies, by the root's name.

    `toolchain_roots` are those that the toolchain adds. Without a toolchain they are missing: what is built already
    needs no compiler, and so none of its headers.
    """
    paths = {root.name: root.path for root in spec.roots}
    torch = installed_torch.torch_folder() if spec.abi != abis.PLAIN else None
    if torch:
        paths["torch"] = torch
    if spec.abi == abis.TORCH:
        paths["python"] = installed_torch.python_include()
    for number, folder in enumerate(spec.include_dirs):
        if is_own_root(spec, folder):
            paths[f"include{number}"] = os.path.realpath(folder)
    paths["system"] = "/"
    paths.update(toolchain_roots or {})
    return paths


def is_own_root(spec: OpSpec, folder: str) -> bool:
    """Returns whether an include folder is a root of its own: an absolute path outside of every kernel root."""
    return os.path.isabs(folder) and not kernel_roots.holding(folder, spec.declared_roots)
