"""A project's table [tool.opforge], and its ops in a wheel."""

from __future__ import annotations

import logging
import os
import tempfile
import tomllib
from collections.abc import Mapping
from typing import Any

from opforge.accelerator.target import Target
from opforge.builders.project_ops import (
    BACKEND,
    EXPECTED,
    KERNELS,
    OpsConfig,
    build_layer,
    config_of,
    default_targets,
    planned_targets,
)
from opforge.builders.wheel_tag import Tag, records_of, wheel_tag
from opforge.cache.layout import PACKAGE_LAYER
from opforge.errors import BuilderError, BuildError

from .wheel_file import Wheel

log = logging.getLogger("opforge")
WHO = "opforge.backend"
REPAIR = "To copy such a library into the wheel: opforge repair-wheel WHEEL"


def read_table(folder: str = ".") -> dict[str, Any]:
    """Returns the table [tool.opforge] of pyproject.toml. Raises BuilderError if there is none."""
    try:
        with open(os.path.join(folder, "pyproject.toml"), "rb") as file:
            table = tomllib.load(file).get("tool", {}).get("opforge")
    except (OSError, ValueError) as error:
        raise BuilderError(WHO, f"pyproject.toml cannot be read ({error})", "Run it in the project's folder") from error
    if not isinstance(table, dict):
        raise BuilderError(WHO, "pyproject.toml has no table [tool.opforge]", f"Add one: {EXPECTED}")
    return table


def wrapped_backend(table: Mapping[str, Any]) -> str:
    """Returns the name of the wrapped backend. Raises BuilderError."""
    name = table.get(BACKEND)
    advice = 'Write for instance: backend = "hatchling.build"'
    if not isinstance(name, str) or not name:
        stated = f"{BACKEND}={name!r}" if BACKEND in table else f"there is no {BACKEND}"
        raise BuilderError(WHO, f"{stated} in [tool.opforge], expected the name of the backend to wrap", advice)
    if name.partition(":")[0].partition(".")[0] == "opforge":
        raise BuilderError(WHO, f"{BACKEND}={name!r} would wrap itself", advice)
    return name


def ops_of(table: Mapping[str, Any]) -> OpsConfig:
    """Returns the ops that the table names, with the targets that are built for. Raises BuilderError."""
    own = {name: value for name, value in table.items() if name not in (BACKEND, KERNELS)}
    try:
        config = config_of(own)
        return config._replace(targets=config.targets or default_targets())
    except ValueError as error:
        raise BuilderError(WHO, str(error), "Correct [tool.opforge] in pyproject.toml") from error


def build_into(wheel: str, wheel_directory: str, table: Mapping[str, Any]) -> str:
    """Builds the ops from what a wheel holds, and writes it with them into another folder. Returns its new name.

    With `variants` its variants are written beside it. Raises BuilderError, BuildError.
    """
    config = ops_of(table)
    with tempfile.TemporaryDirectory(prefix="opforge-wheel-") as folder:
        opened = Wheel.open(wheel, folder)
        tag = build_layers(config, folder)
        if not config.variants:
            return opened.write(wheel_directory, tag)
        with tempfile.TemporaryDirectory(prefix="opforge-wheel-") as whole:  # a wheel that is refused is not left there
            name = opened.write(whole, tag)
            write_variants(config, os.path.join(whole, name), wheel_directory)
            return name


def write_variants(config: OpsConfig, wheel: str, wheel_directory: str) -> None:
    """Writes a built wheel and its variants into a folder, if the project has asked for them. Raises BuilderError."""
    if config.variants:
        from .split import split

        labels, plain, partial = config.variants
        for written in split(wheel, wheel_directory, labels, plain, partial):
            log.info("opforge: wrote %s", written.name)


def _check_variants(config: OpsConfig, folder: str) -> None:
    """Raises BuilderError if the ops cannot be split into variants: nothing has been built yet."""
    from .split import variants_of

    assert config.variants
    try:
        planned = [
            planned_targets(ops, folder, config.targets, config.portable) for ops in config.by_package().values()
        ]
    except ValueError as error:
        raise BuilderError(WHO, str(error), "Correct `targets` in [tool.opforge]") from error
    ops = {op: [*map(Target.parse, targets)] for each in planned for op, targets in each.items()}
    variants_of(ops, labels=config.variants.labels, partial=config.variants.partial)


def build_layers(config: OpsConfig, folder: str, into: str = "") -> Tag:
    """Builds the ops of each package in a folder, by default into the package. Returns the tag of a wheel with them.

    Raises BuilderError, BuildError.
    """
    layers = []
    if config.variants:
        _check_variants(config, folder)
    for package, ops in config.by_package().items():
        if not os.path.isdir(os.path.join(folder, package)):
            problem = f"there is no package {package!r} in the wheel, whose folder gets the ops"
            raise BuilderError(WHO, problem, f"Correct the names in [tool.opforge]: {EXPECTED}")
        layers.append(os.path.join(into or folder, package, PACKAGE_LAYER))
        problem = build_layer(ops, layers[-1], folder, config.targets, config.portable)
        if problem:
            raise BuildError(f"{WHO}: {problem}")
    try:
        tag = wheel_tag([record for layer in layers for record in records_of(layer)])
    except ValueError as error:
        raise BuilderError(WHO, str(error), "Correct `targets` in [tool.opforge]") from error
    if tag.reason:
        log.warning("opforge: the wheel's tag is %s: %s. %s", tag.platform, tag.reason, REPAIR)
    return tag
