"""opforge.lock: every release that a project has chosen, as TOML that is made for review."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge import formats
from opforge.cache.filesystem.files import write_file
from opforge.errors import ExtraNotInstalledError, KernelFormatError
from opforge.packages.form import names, toml_file, version
from opforge.packages.form.json_text import Fields, is_sha256
from opforge.packages.form.version import Version
from opforge.packages.project import LOCK_FILE

FILE = LOCK_FILE
MAX_BYTES = 32 << 20
EXPECTED = "a file that `opforge lock` has written; to write it anew, remove it and run: opforge lock"
HEAD = "Written by `opforge lock`. Do not edit it."


class LockedKernel(NamedTuple):
    """A release that was chosen. Its variants and its signer are not in the file: the digest covers what is signed."""

    name: str
    version: Version
    digest: str
    source: str
    state: int
    """Of the index that named it: an older index is refused."""
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
    fields = Fields(table, path, EXPECTED)
    if fields.whole("format") != formats.LOCK:
        raise fields.error(
            f"its format is {fields.whole('format')}, and this opforge reads {formats.LOCK}: update opforge"
        )
    fields.only(("format", "required", "kernel"))
    required = fields.table("required", {})
    for name, text in required.items():
        names.check(name, path)
        version.parse_range(text if text != "*" else None, f"{path}: {name}")
    kernels = tuple(_kernel(value, path) for value in fields.get("kernel", list, "list of kernels", []))
    seen = [kernel.name for kernel in kernels]
    twice = next((name for name in seen if seen.count(name) > 1), "")
    if twice:
        raise fields.error(f"{twice} is in it twice")
    return LockFile(required, kernels)


def _kernel(value: Any, path: str) -> LockedKernel:
    fields = Fields(value, f"{path}: kernel", EXPECTED)
    name = names.check(fields.text("name"), path)
    fields.where = f"{path}: {name}"
    fields.only(LockedKernel._fields)
    if not is_sha256(fields.text("digest")):
        raise fields.error(f"its 'digest' is {fields.text('digest')[:80]!a}, expected a SHA-256 of 64 hex digits")
    source = fields.text("source", "")
    if "?" in source or "#" in source:
        # It would be read as an option of the user's own: `?unsigned=1` installs what nobody signed.
        options = "options count from your own settings alone, OPFORGE_REMOTES and --remote"
        raise fields.error(f"its 'source' is {ascii(source)[:200]}, and a URL without a query is read: {options}")
    return LockedKernel(
        name,
        version.parse(fields.text("version"), fields.where),
        fields.text("digest"),
        source,
        fields.whole("state", 0),
        fields.texts("requires", ()),
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
        for field in ("name", "version", "digest", "source", "state"):
            value = getattr(kernel, field)
            table.add(field, value if isinstance(value, int) else str(value))
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
