"""The project of a package: one value, whichever file describes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.errors import KernelFormatError
from opforge.packages.form import names
from opforge.packages.form.digests import path_problem
from opforge.packages.form.metadata import Dependency
from opforge.packages.form.version import Version

KERNEL_TOML, BUILD_TOML = "kernel.toml", "build.toml"
LOCAL = "local"
"""The organization of a package whose file names none."""


MakeBuilder = Callable[["Target | None", bool], "OpBuilder"]
"""Returns the builder of an op for a target, portable or not."""


class Needs(NamedTuple):
    """The dependencies of variants."""

    python: tuple[str, ...] = ()
    kernels: tuple[Dependency, ...] = ()


class Project(NamedTuple):
    """A package before it is built."""

    name: str
    """ORG/NAME."""
    version: Version
    folder: str
    builder: MakeBuilder | None
    """None: the package has no library."""
    license: str = ""
    upstream: str = ""
    source: str = ""
    python: str = ""
    """The folder of the package's Python; empty: an `__init__.py` is generated."""
    python_files: tuple[str, ...] = ()
    """The kinds of its files that are shipped, such as py and json; empty: all."""
    targets: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    """The backends that a package without a library is for, and those that a hub kernel's file names."""
    python_depends: tuple[str, ...] = ()
    kernel_depends: tuple[Dependency, ...] = ()
    backend_needs: Mapping[str, Needs] = {}
    """Further dependencies of the variants of a backend, by backend."""
    toolkits: Mapping[str, tuple[str, str]] = {}
    """Backend -> the oldest and the newest version of its toolkit that the library may be built with, or empty."""
    archs: Mapping[str, tuple[str, ...]] = {}
    """Backend -> the architectures that Python alone is for, as the hub's metadata has them."""
    tvm_ffi: str = ""
    """The version of tvm-ffi that the library is built with; empty if its functions are ops of torch."""
    allow_libraries: tuple[str, ...] = ()
    portable: bool = False
    samples: str = ""
    """"module:function": returns (op, arguments) pairs to run the checks of torch with."""
    tests: str = ""
    """The folder of the package's tests."""
    reference: str = ""
    """The source that was read: a folder, or "module:Builder"."""
    declared: Mapping[str, Any] = {}
    """The source of the builder: KERNEL_TOML or BUILD_TOML -> the part of that file. JSON-able."""
    short: str = ""
    """The name that its metadata has, if that is not the name's last part."""
    with_source: bool = False
    """Whether a variant holds the sources, for machines that no other variant fits."""

    def needs_of(self, backend: str) -> Needs:
        """Returns the needs of a backend's variants."""
        more = self.backend_needs.get(backend, Needs())
        kernels = {needed.name: needed for needed in (*self.kernel_depends, *more.kernels)}
        return Needs((*self.python_depends, *more.python), tuple(kernels[name] for name in sorted(kernels)))

    @property
    def short_name(self) -> str:
        """Returns the name as the hub's metadata has it: without the organization, and with '-' alone inside."""
        return self.short or names.python_name(self.name).replace("_", "-")

    @property
    def python_name(self) -> str:
        """Returns the name of the package's Python module."""
        return names.python_name(self.short_name)


def inside(folder: str, path: str, where: str, expected: str) -> str:
    """Returns the absolute path of something below a folder. Raises KernelFormatError if it is not there."""
    normal = os.path.normpath(path)  # ./csrc/x.cpp and tests/ are inside, too
    if path_problem(normal):
        raise KernelFormatError(where, path_problem(path) or path_problem(normal), expected)
    full = os.path.join(folder, normal)
    if not os.path.exists(full):
        raise KernelFormatError(where, f"{path!r} does not exist in {folder}", expected)
    return full
