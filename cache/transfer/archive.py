"""Entries as one archive: the same entries give the same bytes, and unpacking trusts nothing that the archive says.

    entries/RESULT/manifest.json
    entries/RESULT/NAME.so

Tickets stay behind, since they speak of one machine's stamps. An imported entry is found by content at first.
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
from opforge.cache.keys import entry_key
from opforge.cache.layout import Layout
from opforge.cache.records import stat_record
from opforge.cache.records.entry import MANIFEST, Entry, integrity_problem, is_binary_record
from opforge.cache.records.inputs import Inputs
from opforge.errors import ArchiveError

MEMBER = re.compile(r"entries/([0-9a-f]{32})/([A-Za-z0-9_][A-Za-z0-9_.-]*)")
MOST_FILES, MOST_BYTES = 200_000, 64 << 30
"""Bounds on what one archive may unpack to."""
MOST_MANIFEST, MOST_LIBRARY, MOST_NAME = 64 << 20, 4 << 30, 64 << 10
"""Bounds on what is read into memory at once: a manifest, a library, the record of a long name."""
IMPORTED = "imported.json"
"""The place in the name of an imported entry's ticket: no machine's, so its stamps are taken at the first look-up."""


class Transfer(NamedTuple):
    """One entry that was exported or imported. `is_new` is False if the store had it already."""

    key: str
    op: str
    size: int
    is_new: bool = True

    def to_json(self) -> dict[str, object]:
        """Returns what `export --json` and `import --json` print of it: these names are public."""
        return {"result": self.key, "op": self.op, "size": self.size, "news": self.is_new}


class _Member(tarfile.TarInfo):
    """A member of a kind that an export writes; tarfile itself ends without a word at the first broken header."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.XHDTYPE) or member.size < 0:
            raise ValueError(f"{member.name!r} is no file of an entry")
        if member.type == tarfile.XHDTYPE and member.size > MOST_NAME:
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


def export(layout: Layout, results: Iterable[str], path: str) -> list[Transfer]:
    """Write these entries to `path`, a tar archive, whole or not at all. Entries that are gone are left out."""
    moved = []
    draft = f"{path}.{os.getpid()}.tmp"
    try:
        with tarfile.open(draft, "w", format=tarfile.PAX_FORMAT) as archive:
            for result in sorted(set(results)):
                files = _files(layout.entry(result))
                if files is None:
                    continue
                for name, content in files:
                    archive.addfile(_member(f"entries/{result}/{name}", len(content)), io.BytesIO(content))
                op = str(json.loads(dict(files)[MANIFEST])["binary"]["op"])
                moved.append(Transfer(result, op, sum(len(content) for _name, content in files)))
        os.replace(draft, path)
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
    return moved


def _files(folder: str) -> list[tuple[str, bytes]] | None:
    """The files of an entry by name, or None where it is not whole."""
    found = []
    try:
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as file:
                found.append((name, file.read()))
        manifest = json.loads(dict(found)[MANIFEST])
        return found if is_binary_record(manifest["binary"]) and manifest["binary"]["file"] in dict(found) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _member(name: str, size: int) -> tarfile.TarInfo:
    """A member with nothing in it that differs between two exports: no time, no owner."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o500 if name.endswith(".so") else 0o600, 0
    return member


def unpack(layout: Layout, path: str, owners: Collection[int]) -> list[Transfer]:
    """Import an archive's entries; each is checked before it is published.

    Raises ArchiveError at the first thing that is not as it should be: what was published before stays.
    """
    moved: list[Transfer] = []
    try:
        with _open(path) as archive:
            for result, files in _grouped(archive):
                moved.append(_publish(layout, result, files, owners))
    except Exception as error:  # whatever its bytes make tarfile, a decompressor or json raise
        if isinstance(error, OSError) and error.filename == path:
            raise ArchiveError(path, f"it cannot be opened ({error.strerror})", 0) from error
        raise ArchiveError(path, str(error) or type(error).__name__, len(moved)) from error
    return moved


def _open(path: str) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r:*", tarinfo=_Member)
    except tarfile.ReadError as error:  # its text is a line for each kind of archive that this is not
        raise ValueError("it is no tar archive, or its beginning is damaged") from error


def _grouped(archive: tarfile.TarFile) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The archive's entries, one after another; ValueError for a member that an export would not have written."""
    current, files, count, total, seen = "", dict[str, bytes](), 0, 0, set[str]()
    for member in archive:
        count, total = count + 1, total + member.size
        place = MEMBER.fullmatch(member.name)
        if not member.isreg() or member.issparse() or place is None:
            raise ValueError(f"{member.name!r} is no file of an entry")
        if count > MOST_FILES or total > MOST_BYTES:
            raise ValueError(f"it holds more than {MOST_FILES} files or {MOST_BYTES} bytes")
        if member.size > (MOST_MANIFEST if place[2] == MANIFEST else MOST_LIBRARY):
            raise ValueError(f"{member.name!r} is larger than any {'manifest' if place[2] == MANIFEST else 'library'}")
        content: IO[bytes] | None = archive.extractfile(member)
        if content is None:
            raise ValueError(f"{member.name!r} has no content")
        if place[1] != current and files:
            yield current, files
            files = {}
            seen.add(current)
        if place[1] in seen or place[2] in files:
            raise ValueError(f"{member.name!r} is in it twice")
        current = place[1]
        files[place[2]] = content.read()
    if files:
        yield current, files


def _publish(layout: Layout, result: str, files: dict[str, bytes], owners: Collection[int]) -> Transfer:
    manifest: dict[str, Any] = json.loads(files[MANIFEST])
    binary, inputs = manifest["binary"], Inputs.from_json(manifest["inputs"])
    plan, description = str(manifest["plan"]), str(manifest["description"])
    op = str(binary["op"])
    if not is_binary_record(binary) or set(files) != {MANIFEST, binary["file"]}:
        raise ValueError(f"entry {result} does not hold a manifest and its library")
    if result != entry_key(plan, [(one.root, one.path, one.digest) for one in inputs.files]):
        raise ValueError(f"entry {result} has the manifest of another")
    if not all(re.fullmatch(r"[0-9a-f]{32}", key) for key in (plan, description)):
        raise ValueError(f"entry {result} has no proper keys")
    folder = staging.new_folder(layout, result)
    try:
        entry = os.path.join(folder, "entry")
        make_folder(entry)
        for name, content in files.items():
            write_file(os.path.join(entry, name), content)
        os.chmod(os.path.join(entry, binary["file"]), 0o500)
        problem = integrity_problem(Entry(result, entry, binary, "archive"), owners, full=True)
        if problem:
            raise ValueError(f"entry {result} is damaged: {problem}")
        news = staging.publish(layout, entry, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    blank = {**stat_record.EMPTY, "format": stat_record.FORMAT, "result": result, "binary": binary}
    make_folder(layout.plan(plan))
    write_file(os.path.join(layout.plan(plan), f"{result}-{IMPORTED}"), json.dumps(blank).encode())
    make_folder(layout.description(description))
    write_file(os.path.join(layout.description(description), result), b"")
    return Transfer(result, op, sum(len(content) for content in files.values()), news)
