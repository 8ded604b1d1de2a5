"""opforge.lock: every release that a project has chosen, as TOML that is made for review."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.schema import SHA256, TEXT, TEXTS, FormatError
from opforge.errors import ExtraNotInstalledError, KernelFormatError
from opforge.foundation import formats
from opforge.foundation.files import write_file
from opforge.packages.form import names, toml_file, version
from opforge.packages.form.version import Version
from opforge.packages.project import LOCK_FILE

FILE = LOCK_FILE
MAX_BYTES = 32 << 20
EXPECTED = "a file that `opforge lock` has written; to write it anew, remove it and run: opforge lock"
# A URL with a query would be read as one with options of the user's own: `?unsigned=1` installs what nobody signed.
SOURCE = schema.text("[^?#]*", "a URL without a query: options count from your own settings alone")
KERNEL = schema.record(
    {"name": TEXT, "version": TEXT, "digest": SHA256},
    optional={"source": SOURCE, "requires": TEXTS},
)
SCHEMA = schema.record(
    {"format": schema.version(formats.LOCK)},
    optional={"required": schema.table(TEXT), "kernel": schema.items(KERNEL)},
)
HEAD = "Written by `opforge lock`. Do not edit it."


class LockedKernel(NamedTuple):
    """A release that was chosen. Its variants and its signer are not in the file: the digest covers what is signed."""

    name: str
    version: Version
    digest: str
    source: str
    requires: tuple[str, ...]
    """Why it is there: the project's own range, or the packages that need it."""


class LockFile(NamedTuple):
    """The content of a lock file."""

    required: Mapping[str, str]
    """The project's own kernels with their ranges, as they were when the file was written."""
    kernels: tuple[LockedKernel, ...]


def read(path: str) -> LockFile:
    """Returns the content of a lock file. Raises KernelFormatError, OSError."""
    return parse(toml_file.read(path, EXPECTED, MAX_BYTES), path)


def parse(table: dict[str, Any], path: str) -> LockFile:
    """Returns the content of a lock file's table. Raises KernelFormatError."""
    try:
        schema.checked(table, SCHEMA)
    except FormatError as error:
        raise KernelFormatError(path, str(error), EXPECTED) from error
    required = table.get("required", {})
    for name, text in required.items():
        names.check(name, path)
        version.parse_range(text if text != "*" else None, f"{path}: {name}")
    kernels = tuple(_kernel(value, path) for value in table.get("kernel", []))
    seen = [kernel.name for kernel in kernels]
    if twice := next((name for name in seen if seen.count(name) > 1), ""):
        raise KernelFormatError(path, f"{twice} is in it twice", EXPECTED)
    return LockFile(required, kernels)


def _kernel(value: Mapping[str, Any], path: str) -> LockedKernel:
    name = names.check(value["name"], path)
    return LockedKernel(
        name,
        version.parse(value["version"], f"{path}: {name}"),
        value["digest"],
        value.get("source", ""),
        tuple(value.get("requires", ())),
    )


def text(lock: LockFile) -> str:
    """Returns the content of the file: sorted, the same for the same choice."""
    try:
        import tomlkit
    except ImportError as error:
        raise ExtraNotInstalledError("Writing a lock file", "tomlkit", "packages") from error
    document = tomlkit.document()
    document.add(tomlkit.comment(HEAD))
    document.add("format", tomlkit.item(formats.LOCK))
    required = tomlkit.table()
    for name in sorted(lock.required):
        required.add(name, lock.required[name])
    document.add("required", required)
    kernels = tomlkit.aot()
    for kernel in sorted(lock.kernels, key=lambda kernel: kernel.name):
        table = tomlkit.table()
        for field in ("name", "version", "digest", "source"):
            table.add(field, str(getattr(kernel, field)))
        table.add("requires", list(kernel.requires))
        kernels.append(table)
    document.add("kernel", kernels)
    return tomlkit.dumps(document)


def write(folder: str, lock: LockFile) -> bool:
    """Writes a project's lock file by one rename; returns whether its content changed. Raises OSError."""
    path, content = os.path.join(folder, FILE), text(lock).encode()
    try:
        with open(path, "rb") as file:
            if file.read() == content:
                return False
    except FileNotFoundError:
        pass
    write_file(path, content, 0o644)
    return True


def missing(folder: str) -> KernelFormatError:
    """Returns the error for a project without a lock file."""
    return KernelFormatError(os.path.join(folder, FILE), "there is no such file", "a lock file: opforge lock")
