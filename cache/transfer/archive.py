"""Entries as one archive. The same entries give the same bytes; unpacking trusts nothing that the archive says.

entries/ENTRY/build.json
entries/ENTRY/record.json
entries/ENTRY/NAME.so
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import IO, NamedTuple

from opforge.cache import staging
from opforge.cache.admit import admit, checked_record, point_to_fetched
from opforge.cache.layout import DIGITS, Layout
from opforge.cache.records import fetched
from opforge.cache.records.entry import read_record
from opforge.cache.records.fetched import Fetched
from opforge.cache.transfer.tar_reader import TarReader, open_regular
from opforge.errors import ArchiveError
from opforge.machine_folder import make_folder, temp_path
from opforge.warm.library import BUILD, RECORD

IMPORTED = Fetched(remote="cache", offer="", signatures=(), signer="").to_bytes()
"""What is kept beside an imported entry: like one that was fetched, it is found whatever compiler is here."""
MEMBER = re.compile(rf"entries/(?P<entry>[0-9a-f]{{32}}-[0-9a-f]{{{DIGITS}}})/(?P<file>\w[\w.-]*)")
MAX_JSON, MAX_LIBRARY = 4 << 20, 4 << 30
"""Limits on the bytes of a record and of a library. A build that read ten thousand files takes 2 MB. JSON takes up to
forty times its size in memory."""


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


class LeftOut(NamedTuple):
    """An entry that was not exported."""

    result: str
    """The entry's key."""
    reason: str


def export(layout: Layout, keys: Iterable[str], path: str, left_out: list[LeftOut] | None = None) -> list[Transfer]:
    """Writes the entries with these keys to a tar archive, complete or not at all. Raises OSError.

    `left_out` gets what is not in it: what is gone or incomplete, and what was fetched. An archive holds no signatures,
    so a key or a library that is revoked later would stay in use where it is imported.
    """
    transfers = []
    temporary = temp_path(path)
    try:
        with tarfile.open(temporary, "x", format=tarfile.PAX_FORMAT) as archive:
            for key in sorted(set(keys)):
                with ExitStack() as opened:
                    op, files = _open_entry(layout.entry(key), opened)
                    sizes = {name: os.fstat(file.fileno()).st_size for name, file in files.items()}
                    for name, file in files.items():
                        archive.addfile(member(f"entries/{key}/{name}", sizes[name]), file)
                    if not files and left_out is not None:
                        left_out.append(LeftOut(key, _why_left_out(_note_of(layout, key))))
                    if files:
                        transfers.append(Transfer(key, op, sum(sizes.values())))
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return transfers


def _note_of(layout: Layout, key: str) -> str:
    """Returns where it is noted that an entry was fetched; "" if that cannot be known."""
    try:
        record = read_record(layout.entry(key)) or {}
    except (OSError, ValueError):
        return ""
    return os.path.join(layout.fetched(str(record.get("description"))), key)


def _why_left_out(path: str) -> str:
    try:
        note = fetched.read(path)
    except (OSError, ValueError):
        return "it is gone, incomplete or damaged"
    return f"it was fetched from {note.remote}, and an archive holds no signatures: use opforge mirror"


def _open_entry(folder: str, opened: ExitStack) -> tuple[str, dict[str, IO[bytes]]]:
    """Opens the files of an entry; returns its op and the files by name, none if it is damaged."""
    try:
        record = read_record(folder)
        if record is None:
            return "", {}
        limits = {BUILD: MAX_JSON, RECORD: MAX_JSON, record["file"]: record["size"]}
        files = {name: opened.enter_context(open_regular(os.path.join(folder, name))) for name in sorted(limits)}
        too_large = any(os.fstat(files[name].fileno()).st_size > limit for name, limit in limits.items())
        return (record["op"], {} if too_large else files)
    except (OSError, ValueError):
        return "", {}


def member(name: str, size: int) -> tarfile.TarInfo:
    """Returns a member's header, in which nothing differs between two exports: no time, no owner."""
    header = tarfile.TarInfo(name)
    header.size, header.mode, header.mtime = size, 0o500 if name.endswith(".so") else 0o600, 0
    return header


def unpack(layout: Layout, path: str, owners: Collection[int]) -> list[Transfer]:
    """Imports the entries of an archive; each is checked before it is published.

    Only one library is on disk without having been checked, and no more than a part of one in memory.

    Raises:
        ArchiveError: The archive cannot be opened, or something in it is wrong. The entries before it stay.
    """
    transfers: list[Transfer] = []
    try:
        with open_regular(path) as file:
            _unpack(layout, TarReader(file), owners, transfers)
    except OSError as error:
        if error.filename == path:
            raise ArchiveError(path, f"it cannot be opened ({error.strerror})", 0) from error
        problem = f"{error.filename or layout.root}: {error.strerror or error}"
        advice = "Free some space or give yourself access there, or set OPFORGE_CACHE_DIR to another folder."
        raise ArchiveError(path, problem, len(transfers), advice) from error
    except Exception as error:  # damaged bytes can make a decompressor or json raise anything
        raise ArchiveError(path, str(error) or type(error).__name__, len(transfers)) from error
    return transfers


def _unpack(layout: Layout, reader: TarReader, owners: Collection[int], transfers: list[Transfer]) -> None:
    """Adds each entry to `transfers` once it is published. Raises ValueError for what an export would not write."""
    current, sizes, seen, folder = "", dict[str, int](), set[str](), ""
    try:
        for path, size in reader.members():
            match = MEMBER.fullmatch(path)
            if match is None:
                raise ValueError(f"{path!r} is not a file of an entry")
            key, name = match["entry"], match["file"]
            is_json = name in (RECORD, BUILD)
            if size > (MAX_JSON if is_json else MAX_LIBRARY):
                raise ValueError(f"{path!r} is larger than any {'record' if is_json else 'library'}")
            if key != current and folder:
                transfers.append(_publish(layout, current, folder, sizes, owners))
                _remove(folder)
                folder = ""
            if name in sizes if key == current else key in seen:
                raise ValueError(f"{path!r} is in it twice")
            if not folder:
                current, sizes, folder = key, {}, staging.new_folder(layout, key)
                seen.add(key)
                make_folder(os.path.join(folder, "entry"))
            if len(sizes) == 3:
                raise ValueError(f"entry {key} does not hold a record and its library")
            sizes[name] = size
            _write(os.path.join(folder, "entry", name), reader)
        if folder:
            transfers.append(_publish(layout, current, folder, sizes, owners))
    finally:
        if folder:
            _remove(folder)


def _write(path: str, reader: TarReader) -> None:
    """Writes the archive's current file to a new one."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "wb", buffering=0) as file:
        for chunk in reader.content():
            written = memoryview(chunk)
            while written:
                written = written[file.write(written) :]


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _publish(layout: Layout, key: str, folder: str, sizes: Mapping[str, int], owners: Collection[int]) -> Transfer:
    """Checks the entry in a staging folder and publishes it. Raises ValueError if something in it is wrong."""
    finished = os.path.join(folder, "entry")
    if not {RECORD, BUILD} < sizes.keys():
        raise ValueError(f"entry {key} does not hold a record and its library")
    try:
        record = checked_record(finished, owners, key)
        entry, is_new = admit(layout, finished, owners)
        if is_new:  # what was built here stays this machine's own
            point_to_fetched(layout, entry, record["description"], IMPORTED)
    except ValueError as error:
        raise ValueError(f"entry {key} is damaged: {error}") from error
    return Transfer(key, record["op"], sum(sizes.values()), is_new)
