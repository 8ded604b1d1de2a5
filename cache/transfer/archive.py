"""Entries as one archive. The same entries give the same bytes; unpacking trusts nothing that the archive says.

    entries/ENTRY/manifest.json
    entries/ENTRY/NAME.so

Stat records are left out, since their stamps are one machine's. The first look-up of an imported entry hashes its
inputs.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any, NamedTuple

from opforge.cache import staging
from opforge.cache.filesystem.files import make_folder, write_file
from opforge.cache.layout import Layout
from opforge.cache.records import validity
from opforge.cache.records.entry import MANIFEST, Entry, integrity_problem, is_binary_record
from opforge.cache.records.inputs import Inputs
from opforge.errors import ArchiveError

MEMBER = re.compile(r"entries/([0-9a-f]{32})/([A-Za-z0-9_][A-Za-z0-9_.-]*)")
MAX_FILES, MAX_BYTES = 200_000, 64 << 30
"""Limits on what one archive may unpack to."""
MAX_MANIFEST, MAX_LIBRARY, MAX_NAME = 64 << 20, 4 << 30, 64 << 10
"""Limits on the bytes that are read into memory at once: a manifest, a library, the record of a long name."""
IMPORTED = "imported.json"
"""Stands for the digest of the root paths in the file name of an imported entry's stat record. It equals no digest, so
the stamps are taken at the first look-up."""


class Transfer(NamedTuple):
    """One entry that was exported or imported."""

    key: str
    op: str
    size: int
    """Bytes."""
    is_new: bool = True
    """False if the store had it already."""

    def to_json(self) -> dict[str, object]:
        """Returns what `export --json` and `import --json` print of it: these names are public."""
        return {"result": self.key, "op": self.op, "size": self.size, "news": self.is_new}


class _Member(tarfile.TarInfo):
    """A member of a kind that an export writes. A damaged header raises; tarfile alone would end without an error."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.XHDTYPE) or member.size < 0:
            raise ValueError(f"{member.name!r} is no file of an entry")
        if member.type == tarfile.XHDTYPE and member.size > MAX_NAME:
            raise ValueError(f"{member.name!r} is larger than the record of any name")
        return member

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Member:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # the mark at the end of each archive
                raise
            raise tarfile.ReadError(f"it is cut short or damaged ({error})") from error


def export(layout: Layout, keys: Iterable[str], path: str) -> list[Transfer]:
    """Writes the entries with these keys to a tar archive, complete or not at all. Raises OSError.

    Entries that are gone or incomplete are left out.
    """
    transfers = []
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as archive:
            for key in sorted(set(keys)):
                files = _files(layout.entry(key))
                if files is None:
                    continue
                for name, content in files:
                    archive.addfile(_member(f"entries/{key}/{name}", len(content)), io.BytesIO(content))
                op = str(json.loads(dict(files)[MANIFEST])["binary"]["op"])
                transfers.append(Transfer(key, op, sum(len(content) for _name, content in files)))
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return transfers


def _files(folder: str) -> list[tuple[str, bytes]] | None:
    """Returns the files of an entry by name, or None if it is not complete."""
    files = []
    try:
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as file:
                files.append((name, file.read()))
        binary = json.loads(dict(files)[MANIFEST])["binary"]
        return files if is_binary_record(binary) and binary["file"] in dict(files) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _member(name: str, size: int) -> tarfile.TarInfo:
    """Returns a member in which nothing differs between two exports: no time, no owner."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o500 if name.endswith(".so") else 0o600, 0
    return member


def unpack(layout: Layout, path: str, owners: Collection[int]) -> list[Transfer]:
    """Imports the entries of an archive; each is checked before it is published.

    Raises:
        ArchiveError: The archive cannot be opened, or something in it is wrong. The entries before it stay.
    """
    transfers: list[Transfer] = []
    try:
        with _open(path) as archive:
            for key, files in _grouped(archive):
                transfers.append(_publish(layout, key, files, owners))
    except Exception as error:  # damaged bytes can make tarfile, a decompressor or json raise anything
        if isinstance(error, OSError) and error.filename == path:
            raise ArchiveError(path, f"it cannot be opened ({error.strerror})", 0) from error
        raise ArchiveError(path, str(error) or type(error).__name__, len(transfers)) from error
    return transfers


def _open(path: str) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r:*", tarinfo=_Member)
    except tarfile.ReadError as error:  # its text has a line for each compression that was tried
        raise ValueError("it is no tar archive, or its beginning is damaged") from error


def _grouped(archive: tarfile.TarFile) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yields (key, files by name) of each entry. Raises ValueError for a member that an export would not write."""
    current, files, count, total, seen = "", dict[str, bytes](), 0, 0, set[str]()
    for member in archive:
        count, total = count + 1, total + member.size
        match = MEMBER.fullmatch(member.name)
        if not member.isreg() or member.issparse() or match is None:
            raise ValueError(f"{member.name!r} is no file of an entry")
        key, name = match.groups()
        if count > MAX_FILES or total > MAX_BYTES:
            raise ValueError(f"it holds more than {MAX_FILES} files or {MAX_BYTES} bytes")
        if member.size > (MAX_MANIFEST if name == MANIFEST else MAX_LIBRARY):
            raise ValueError(f"{member.name!r} is larger than any {'manifest' if name == MANIFEST else 'library'}")
        content: IO[bytes] | None = archive.extractfile(member)
        if content is None:
            raise ValueError(f"{member.name!r} has no content")
        if key != current and files:
            yield current, files
            files = {}
            seen.add(current)
        if key in seen or name in files:
            raise ValueError(f"{member.name!r} is in it twice")
        current = key
        files[name] = content.read()
    if files:
        yield current, files


def _publish(layout: Layout, key: str, files: dict[str, bytes], owners: Collection[int]) -> Transfer:
    """Checks one entry and publishes it. Raises ValueError, KeyError or TypeError if something in it is wrong."""
    manifest: dict[str, Any] = json.loads(files[MANIFEST])
    binary, inputs = manifest["binary"], Inputs.from_json(manifest["inputs"])
    plan, description = str(manifest["plan"]), str(manifest["description"])
    op = str(binary["op"])
    if not is_binary_record(binary) or set(files) != {MANIFEST, binary["file"]}:
        raise ValueError(f"entry {key} does not hold a manifest and its library")
    if key != inputs.result_key(plan):
        raise ValueError(f"entry {key} has the manifest of another")
    if not all(re.fullmatch(r"[0-9a-f]{32}", text) for text in (plan, description)):
        raise ValueError(f"entry {key} has no valid keys")
    folder = staging.new_folder(layout, key)
    try:
        finished = os.path.join(folder, "entry")
        make_folder(finished)
        for name, content in files.items():
            write_file(os.path.join(finished, name), content)
        os.chmod(os.path.join(finished, binary["file"]), 0o500)
        problem = integrity_problem(Entry(key, finished, binary, "archive"), owners, full=True)
        if problem:
            raise ValueError(f"entry {key} is damaged: {problem}")
        is_new = staging.publish(layout, finished, key)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    record = {**validity.EMPTY, "format": validity.FORMAT, "result": key, "binary": binary}
    make_folder(layout.plan(plan))
    write_file(os.path.join(layout.plan(plan), f"{key}-{IMPORTED}"), json.dumps(record).encode())
    make_folder(layout.description(description))
    write_file(os.path.join(layout.description(description), key), b"")
    return Transfer(key, op, sum(len(content) for content in files.values()), is_new)
