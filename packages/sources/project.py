"""What a package is made from: one value, whichever file describes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.errors import KernelFormatError
from opforge.packages.form.version import Range, Version

if TYPE_CHECKING:
    from opforge.accelerator.target import Target
    from opforge.builders.base import OpBuilder

KERNEL_TOML, BUILD_TOML = "kernel.toml", "build.toml"
LOCAL = "local"
"""The organization of a package whose file names none."""


MakeBuilder = Callable[["Target | None", bool], "OpBuilder"]
"""Returns the builder of an op for a target, portable or not."""


class Needs(NamedTuple):
    """What variants need that is not in them."""

    python: tuple[str, ...] = ()
    kernels: Mapping[str, Range] = {}


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
    targets: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    """The backends that a package without a library is for, and those that a hub kernel's file names."""
    python_depends: tuple[str, ...] = ()
    kernel_depends: Mapping[str, Range] = {}
    backend_needs: Mapping[str, Needs] = {}
    """What the variants of a backend need besides, by backend."""
    allow_libraries: tuple[str, ...] = ()
    portable: bool = False
    samples: str = ""
    """"module:function": returns (op, arguments) pairs to run the checks of torch with."""
    tests: str = ""
    """The folder of the package's tests."""
    reference: str = ""
    """What `read` has read: a folder, or "module:Builder"."""
    declared: Mapping[str, Any] = {}
    """What the builder is made from: KERNEL_TOML or BUILD_TOML -> the part of that file. JSON-able."""
    with_source: bool = False
    """Whether a variant holds the sources, for machines that no other variant fits."""

    def needs_of(self, backend: str) -> Needs:
        """Returns what the variants of a backend need."""
        more = self.backend_needs.get(backend, Needs())
        return Needs((*self.python_depends, *more.python), {**self.kernel_depends, **more.kernels})


def read(path: str, name: str = "", version: str = "") -> Project:
    """Returns the project in a folder with kernel.toml or build.toml, or of `module:Builder`.

    `name` and `version` are for a builder, which states neither; they replace what a file states. Raises
    KernelFormatError, BuilderError.
    """
    if ":" in path and not os.path.exists(path):
        from .kernel_toml import of_builder

        return of_builder(path, name, version)._replace(reference=path)
    folder = os.path.abspath(os.path.dirname(path) if os.path.isfile(path) else path)
    if os.path.isfile(os.path.join(folder, KERNEL_TOML)):
        from .kernel_toml import read_folder as read_file
    elif os.path.isfile(os.path.join(folder, BUILD_TOML)):
        from .build_toml import read_folder as read_file
    else:
        expected = f"a folder with {KERNEL_TOML} or {BUILD_TOML}, or module:Builder"
        raise KernelFormatError(folder, "there is no description of a package in it", expected)
    return renamed(read_file(folder)._replace(reference=folder), name, version)


def builder_of(declared: Mapping[str, Any], folder: str, where: str) -> MakeBuilder:
    """Returns the builder that `Project.declared` describes, with its files in `folder`. Raises KernelFormatError."""
    for file, table in declared.items():
        if file == KERNEL_TOML:
            from . import kernel_toml

            return kernel_toml.builder_of(table, where, folder)
        if file == BUILD_TOML:
            from . import build_toml

            return build_toml.builder_of(table, where, folder)
    raise KernelFormatError(where, "it does not say how its op is built", f"a part of {KERNEL_TOML} or {BUILD_TOML}")


def renamed(project: Project, name: str, version: str) -> Project:
    """Returns the project with this name and version, where they are not empty. Raises KernelFormatError."""
    from opforge.packages.form import names
    from opforge.packages.form import version as versions

    if name:
        project = project._replace(name=names.check(name, "--name"))
    return project._replace(version=versions.parse(version, "--version")) if version else project


def inside(folder: str, path: str, where: str, expected: str) -> str:
    """Returns the absolute path of something below a folder. Raises KernelFormatError if it is not there."""
    from opforge.packages.form.digests import path_problem

    normal = os.path.normpath(path)  # ./csrc/x.cpp and tests/ are inside, too
    if path_problem(normal):
        raise KernelFormatError(where, path_problem(path) or path_problem(normal), expected)
    full = os.path.join(folder, normal)
    if not os.path.exists(full):
        raise KernelFormatError(where, f"{path!r} does not exist in {folder}", expected)
    return full
