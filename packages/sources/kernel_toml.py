"""Reads kernel.toml: a package whose op is a builder, or is declared in the file itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from opforge.accelerator.target import Target
from opforge.builders.base import OpBuilder
from opforge.builders.declaration.attributes import TOML, declared_in
from opforge.builders.declaration.kernel_roots import folder_of
from opforge.cache.schema import Fields
from opforge.errors import BuilderError, KernelFormatError, OpforgeError
from opforge.foundation import working_folder
from opforge.packages.form import names, toml_file, version
from opforge.packages.form.metadata import Dependency
from opforge.packages.form.properties import NOARCH

from . import modules
from .project import KERNEL_TOML, LOCAL, MakeBuilder, Project, inside

EXPECTED = "the fields that docs/packages.md lists for kernel.toml"
FIELDS = (
    "allow-libraries",
    "backends",
    "builder",
    "check",
    "depends",
    "license",
    "name",
    "op",
    "portable",
    "python",
    "python-depends",
    "source",
    "targets",
    "upstream",
    "version",
    "with-source",
)
OP_FIELDS = {name.replace("_", "-"): name for name in declared_in(TOML)}
"""Field of [op] -> attribute of OpBuilder."""


def read_folder(folder: str) -> Project:
    """Returns the project that a folder's kernel.toml describes. Raises KernelFormatError, OSError."""
    path = os.path.join(folder, KERNEL_TOML)
    fields = Fields(toml_file.read(path, EXPECTED), path, EXPECTED)
    fields.only(FIELDS)
    name = names.check(fields.text("name"), f"{path}: name")
    names.check_short(name.rpartition("/")[2], f"{path}: name")
    check = Fields(fields.table("check", {}), f"{path}: check", EXPECTED)
    check.only(("samples", "tests"))
    project = Project(
        name=name,
        version=version.parse(fields.values.get("version"), f"{path}: version"),
        folder=folder,
        builder=None,
        license=fields.text("license"),
        upstream=fields.text("upstream", ""),
        source=fields.text("source", ""),
        python=_folder(folder, fields.text("python", ""), f"{path}: python"),
        targets=_targets(fields),
        backends=fields.texts("backends", ()),
        python_depends=requirements(fields.texts("python-depends", ()), f"{path}: python-depends"),
        kernel_depends=tuple(
            Dependency(names.check(needed, f"{path}: depends"), version.parse_range(text, f"{path}: depends"))
            for needed, text in fields.table("depends", {}).items()
        ),
        allow_libraries=fields.texts("allow-libraries", ()),
        portable=fields.flag("portable", False),
        samples=check.text("samples", ""),
        tests=_folder(folder, check.text("tests", ""), f"{path}: check"),
        with_source=fields.flag("with-source", False),
    )
    declared: dict[str, Any] = {field: fields.values[field] for field in ("builder", "op") if field in fields.values}
    if declared:
        if project.backends:
            raise fields.error("'backends' is for a package without a library: name `targets`, such as \"cuda:sm_90\"")
        declared["name"] = name
        return project._replace(builder=builder_of(declared, path, folder), declared={KERNEL_TOML: declared})
    if not project.python:
        raise fields.error("it has neither 'builder' nor [op], and no 'python' either: there is nothing to pack")

    if unknown := [backend for backend in project.backends if backend not in NOARCH]:
        raise fields.error(f"'backends' holds {unknown[0]!r}: expected one of {', '.join(NOARCH)}")
    return project._replace(backends=project.backends or ("universal",))


def builder_of(table: dict[str, Any], path: str, folder: str) -> MakeBuilder:
    """Returns the builder that `builder` or [op] declares; `name` is the package's. Raises KernelFormatError."""
    fields = Fields(table, path, EXPECTED)
    if len(fields.values.keys() & {"builder", "op"}) != 1:
        raise fields.error("it has both 'builder' and [op], or neither")
    if "builder" in fields.values:
        kind = builder_class(fields.text("builder"), folder)
    else:
        attributes = _attributes(
            Fields(fields.table("op"), f"{path}: op", EXPECTED), names.python_name(fields.text("name"))
        )
        kind = type("PackageBuilder", (_op_builder(),), {**attributes, "folder": folder, "__module__": __name__})
    return lambda target, portable: _make(kind, target, portable)


def _folder(folder: str, path: str, where: str) -> str:
    return inside(folder, path, where, EXPECTED) if path else ""


def _targets(fields: Fields) -> tuple[str, ...]:
    try:
        return tuple(str(Target.parse(text)) for text in fields.texts("targets", ()))
    except ValueError as error:
        if isinstance(error, OpforgeError):
            raise
        raise fields.error(f"'targets': {error}") from error


def requirements(texts: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Returns the requirements. Raises KernelFormatError for one that is not of PEP 508."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in texts:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            expected = "requirements as pip takes them, such as einops>=0.8"
            raise KernelFormatError(
                where, f"{text!r} is not a requirement ({str(error).splitlines()[0]})", expected
            ) from error
    return texts


def _attributes(fields: Fields, name: str) -> Mapping[str, Any]:
    fields.only(tuple(OP_FIELDS))
    fields.texts("sources")
    fields.texts("devices", ())
    values = {OP_FIELDS[field]: value for field, value in fields.values.items()}
    return {"name": name, **values}


def _op_builder() -> type[OpBuilder]:
    return OpBuilder


def _make(kind: type[OpBuilder], target: Target | None, portable: bool) -> OpBuilder:
    return kind(target, portable=True) if portable else kind(target)


def builder_class(reference: str, folder: str = "") -> type[OpBuilder]:
    """Returns the builder class at `module:Class`; a module in `folder` is imported under a name of its own.

    Raises BuilderError.
    """
    module_name, _, attribute = reference.partition(":")
    in_project = modules.file_of(module_name, folder) != ""
    try:
        module = modules.imported(module_name, folder) if in_project else working_folder.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script may call sys.exit() when it is imported
        if in_project:
            raise modules.import_error(reference, folder, error) from error
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            problem = f"there is no module {missing!r} in this folder or on PYTHONPATH"
            raise BuilderError(reference, problem, "Name the builder as module:Class") from error
        raise BuilderError.of_import(reference, error, f"python -c 'import {module_name}'") from error
    kind = getattr(module, attribute, None) if attribute else None
    if _is_builder(kind):
        return cast("type[OpBuilder]", kind)
    problem = "it is not a subclass of opforge.OpBuilder"
    if kind is None:
        problem = f"the module {module_name!r} has no {attribute!r}" if attribute else "it names no class"
    listed = ", ".join(name for name, value in sorted(vars(module).items()) if _is_builder(value))
    raise BuilderError(reference, problem, "Name the builder as module:Class" + (listed and f". It has: {listed}"))


def _is_builder(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, _op_builder()) and value is not _op_builder()


def of_builder(reference: str, name: str, text: str) -> Project:
    """Returns the project of a builder alone: its functions are the package's. Raises KernelFormatError, BuilderError.

    Without a name it is `local/` and the op's; without a version, 1.
    """
    kind = builder_class(reference)
    short = (kind.name or "op").lower().replace("_", "-")

    return Project(
        name=names.check(name or f"{LOCAL}/{short}", "--name"),
        version=version.parse(text or "1", "--version"),
        folder=folder_of(kind),
        builder=lambda target, portable: _make(kind, target, portable),
        declared={KERNEL_TOML: {"builder": reference, "name": name or f"{LOCAL}/{short}"}},
    )
