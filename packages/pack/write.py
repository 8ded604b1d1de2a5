"""Writes one variant: its Python, its library, `_ops.py` and the metadata, which depend on the contents alone."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from opforge.builders.declaration.abi import FACADE
from opforge.cache.keys import canonical
from opforge.cache.records.entry import with_record_key
from opforge.errors import PackError
from opforge.foundation import formats
from opforge.packages.form import digests, metadata
from opforge.packages.form.metadata import Metadata, Provenance
from opforge.packages.form.properties import SOURCE, TVM, Properties
from opforge.packages.form.variant import label_of
from opforge.packages.sources.project import Project

from . import ops_module, plain, source_files

ID_DIGITS = 10
FEW_ATTEMPTS, ATTEMPTS = 3, 100
"""How often a variant is put in its place if others pack the same project at once."""
LEFT_OUT = frozenset({"__pycache__", "tests", ".git"})
"""Folders in a package's Python that are not shipped."""


class Library(NamedTuple):
    """The built library of a variant."""

    path: str
    record: Mapping[str, Any]
    """The record of the entry that it comes from."""
    arch: tuple[str, ...]
    """The architectures of its target, as the hub's metadata has them."""
    measured: Mapping[str, Any]
    """Facts that were read from the file itself."""
    functions: Mapping[str, Any] | None = None
    """How its plain functions are called; None if it has ops of torch."""
    module: str = ""
    """The path of the Python that calls them, if it is not in the package's own."""


def write(
    folder: str, project: Project, properties: Properties, library: Library | None, commit: Provenance | None
) -> Metadata:
    """Writes a variant into an empty folder and returns its metadata, which is not written yet.

    Raises PackError for what cannot be in a package, OSError.
    """
    python = _copy_python(project, folder)
    is_source = properties.framework == SOURCE
    functions, module = (library.functions, library.module) if library else (None, "")
    if is_source:
        assert project.builder is not None
        functions, module = plain.calls(project, project.builder(None, False))
    if module:
        with open(module, "rb") as stream:
            python |= {plain.MODULE: stream.read()}
        _write_files(folder, {plain.MODULE: python[plain.MODULE]})
    if is_source:
        python |= _copy_sources(project, folder)
    short = project.python_name
    digits = _digits(project, properties, python, library, functions)
    backend = "cuda" if properties.backend == "universal" else properties.backend
    identifier = f"_{short}_{backend}_{digits}"
    file, needs = "", project.needs_of(properties.backend)
    if library:
        file = f"{identifier}.abi3.so"
        shutil.copyfile(library.path, os.path.join(folder, file))
    if functions is not None:
        text = ops_module.of_plain_functions(file, identifier, functions)
    elif library:
        text = _ops_of(library, properties, file, digits, identifier)
    else:
        text = ops_module.from_source(_is_on_facade(project)) if is_source else ops_module.python_only(identifier)
    _write(folder, ops_module.FILE, text)
    if "__init__.py" not in python:
        _write(folder, "__init__.py", ops_module.init(project.name))
    for path in digests.files_of(folder):
        os.chmod(os.path.join(folder, path), 0o644)
    return Metadata(
        name=project.short_name,
        id=identifier,
        version=project.version.interface,
        license=project.license,
        backend=backend,
        archs=library.arch if library else project.archs.get(properties.backend, ()),
        python_depends=needs.python,
        kernel_depends=tuple(needed for needed in needs.kernels if needed.is_hubs),
        files=digests.of_folder(folder),
        kernel=commit,
        opforge=_ours(project, properties, library, file),
        upstream=project.upstream,
        source=project.source,
    )


def _ours(project: Project, properties: Properties, library: Library | None, file: str) -> dict[str, Any]:
    """Returns the fields that opforge adds to the hub's metadata. `file` is the name of the library's file."""
    return {
        "format": formats.VARIANT,
        "name": project.name,
        "release": str(project.version),
        "properties": properties.to_json(),
        "library": file,
        # How long the build took is no property of the library.
        "record": with_record_key({**library.record, "seconds": 0.0}) if library else None,
        "measured": dict(library.measured) if library else {},
        **({"source": dict(project.declared)} if properties.framework == SOURCE else {}),
        "depends": {needed.name: needed.text for needed in project.needs_of(properties.backend).kernels},
    }


def _ops_of(library: Library, properties: Properties, file: str, digits: str, identifier: str) -> str:
    """Returns the text of `_ops.py` for a variant with a library that registers its functions."""
    if properties.framework == TVM:
        return ops_module.of_tvm_ffi(file, identifier)
    if library.record["python_module"] and library.record["abi"] == FACADE:
        return ops_module.with_module(file, f"_{digits}", library.record["op"])
    return ops_module.with_library(file, f"_{digits}")


def _is_on_facade(project: Project) -> bool:
    """Returns whether the library that is built from a project's sources is on the facade, which is for the CPU."""
    assert project.builder is not None
    builder = project.builder(None, False)
    return "cpu" in builder.devices and builder.spec().target.device == "cpu" and builder.spec().abi == FACADE


def _copy_sources(project: Project, folder: str) -> dict[str, bytes]:
    """Copies the files that the library is built from. Returns their contents. Raises PackError, OSError."""
    files = {f"{metadata.SOURCES}/{path}": content for path, content in source_files.read(project).items()}
    _write_files(folder, files)
    return files


def _write_files(folder: str, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        os.makedirs(os.path.join(folder, os.path.dirname(path)), exist_ok=True)
        with open(os.path.join(folder, path), "wb") as file:
            file.write(content)


def _copy_python(project: Project, folder: str) -> dict[str, bytes]:
    """Copies the package's own files and returns them. Raises PackError for a link, or a name that is opforge's."""
    files: dict[str, bytes] = {}
    problems = []
    for parent, folders, file_names in os.walk(project.python) if project.python else ():
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("."))
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]  # they are not walked into
        for name in sorted([*file_names, *links]):
            path = os.path.join(parent, name)
            relative = os.path.relpath(path, project.python)
            if digests.is_bytecode(relative) or name.startswith(".") or not _is_shipped(project, name):
                continue
            if os.path.islink(path):
                problems.append(f"{relative} is a link: put a file in its place")
            elif not os.path.isfile(path):
                problems.append(f"{relative} is not a file: remove it")
            elif digests.path_problem(relative):
                problems.append(digests.path_problem(relative))
            elif relative.split("/")[0] in (ops_module.FILE, metadata.FILE, metadata.SIGSTORE, metadata.SOURCES):
                problems.append(f"{relative} is written by opforge: remove it from {project.python}")
            else:
                with open(path, "rb") as file:
                    files[relative] = file.read()
    by_case: dict[str, str] = {}
    same = [(path, by_case[path.lower()]) for path in files if by_case.setdefault(path.lower(), path) != path]
    problems += [f"{path} and {other} are one file on other systems: rename one" for path, other in same]
    if project.python and "__init__.py" not in files:
        problems.append(f"{project.python} has no __init__.py")
    if problems:
        raise PackError(project.name, problems, "Correct the package's Python.")
    _write_files(folder, files)
    return files


def _is_shipped(project: Project, name: str) -> bool:
    return not project.python_files or name.rpartition(".")[2] in project.python_files


def _digits(
    project: Project,
    properties: Properties,
    python: Mapping[str, bytes],
    library: Library | None,
    functions: Mapping[str, Any] | None,
) -> str:
    """Returns digits that only this build has: they make its namespace in torch.ops its own."""
    contents = {path: hashlib.sha256(content).hexdigest() for path, content in python.items()}
    digest = hashlib.sha256(canonical([project.name, str(project.version), properties.to_json(), contents]))
    digest.update((library.record["sha256"] if library else "").encode())
    if functions is not None:
        digest.update(canonical(dict(functions)))
    return digest.hexdigest()[:ID_DIGITS]


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def finish(folder: str, stated: Metadata) -> str:
    """Writes the metadata. Returns the digest that names the variant."""
    text = stated.text()
    with open(os.path.join(folder, metadata.FILE), "wb") as file:
        file.write(text)
    os.chmod(os.path.join(folder, metadata.FILE), 0o644)
    return digests.tree_digest(stated.files or {}, text)


def place(folder: str, out: str, properties: Properties, name: str) -> str:
    """Moves a finished variant to its place below `out`; an earlier one of ours there is replaced. Returns the path.

    Raises PackError if something else is there.
    """
    label = label_of(properties)
    target = os.path.join(out, label)
    os.makedirs(out, exist_ok=True)
    for attempt in range(ATTEMPTS):
        if os.path.lexists(target):
            if packed_in(target) is None:
                if attempt < FEW_ATTEMPTS:
                    continue  # it may have been replaced just now
                problem = f"{target} exists, and opforge pack did not write it"
                raise PackError(name, [problem], "Remove it, or choose another folder with --out.")
            with suppress(FileNotFoundError):  # another process has just replaced it
                os.rename(target, f"{folder}.replaced-{attempt}")
        try:
            os.rename(folder, target)
            return target
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    raise PackError(name, [f"another process keeps replacing {target}"], "Pack when it has ended.")


def packed_in(folder: str) -> Metadata | None:
    """Returns the metadata of a variant that opforge pack has written; None if the folder is anything else."""
    try:
        stated = metadata.read(folder)
    except (OSError, ValueError):
        return None
    return stated if "release" in stated.opforge and not os.path.islink(folder) else None
