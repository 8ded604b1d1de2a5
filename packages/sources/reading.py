"""Reads the project in a folder, whichever file describes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from opforge.errors import KernelFormatError
from opforge.packages.form import names
from opforge.packages.form import version as versions

from . import build_toml, kernel_toml
from .project import BUILD_TOML, KERNEL_TOML, MakeBuilder, Project


def read(path: str, name: str = "", version: str = "", provided: Mapping[str, str] | None = None) -> Project:
    """Returns the project in a folder with kernel.toml or build.toml, or of `module:Builder`.

    `name` and `version` are for a builder, which states neither; they replace what a file states. `provided` are the
    folders or wheels of what a hub kernel depends on, by name. Raises KernelFormatError, BuilderError.
    """
    if ":" in path and not os.path.exists(path):
        return kernel_toml.of_builder(path, name, version)._replace(reference=path)
    folder = os.path.abspath(os.path.dirname(path) if os.path.isfile(path) else path)
    if os.path.isfile(os.path.join(folder, KERNEL_TOML)):
        project = kernel_toml.read_folder(folder)
    elif os.path.isfile(os.path.join(folder, BUILD_TOML)):
        project = build_toml.read_folder(folder, provided)
    else:
        expected = f"a folder with {KERNEL_TOML} or {BUILD_TOML}, or module:Builder"
        raise KernelFormatError(folder, "there is no description of a package in it", expected)
    return renamed(project._replace(reference=folder), name, version)


def builder_of(declared: Mapping[str, Any], folder: str, where: str) -> MakeBuilder:
    """Returns the builder that `Project.declared` describes, with its files in `folder`. Raises KernelFormatError."""
    for file, table in declared.items():
        if file == KERNEL_TOML:
            return kernel_toml.builder_of(table, where, folder)
        if file == BUILD_TOML:
            return build_toml.builder_of(table, where, folder)
    raise KernelFormatError(where, "it does not say how its op is built", f"a part of {KERNEL_TOML} or {BUILD_TOML}")


def renamed(project: Project, name: str, version: str) -> Project:
    """Returns the project with this name and version, where they are not empty. Raises KernelFormatError."""
    if name:
        project = project._replace(name=names.check(name, "--name"))
    return project._replace(version=versions.parse(version, "--version")) if version else project
