"""Copies packages to another store, with their signatures as they are: no key is needed."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from opforge.cache.filesystem.disk import digest_of
from opforge.errors import KernelFormatError, StoreError
from opforge.packages.form.version import Version
from opforge.remote import removals
from opforge.remote.offers import Blob
from opforge.remote.stores.protocol import ObjectStore

from . import index, release
from .index import Index, Listed
from .transfer import Report, Reported, ignore
from .tuf import copies

INDEX = re.compile(r"v1/packages/([a-z0-9-]+/[a-z0-9-]+)\.json")


class Copied(NamedTuple):
    """One package that was copied."""

    name: str
    releases: int
    """Those that the target had not."""
    size: int
    """Bytes of the blobs that were copied."""
    problems: tuple[str, ...] = ()


def copy(
    source: ObjectStore, target: ObjectStore, names: Collection[str] = (), report: Report = ignore
) -> Iterator[Copied]:
    """Copies the releases of these packages, or of all, that the target lacks, and which are yanked; yields each.

    Blobs are copied first, then the index, then what TUF's keys have signed. A version of which the target has other
    files is left alone and reported. If the target has TUF metadata of its own, nothing is copied.
    Signatures are verified by those who install. Raises StoreError, PublishError.
    """
    copies.require_same(source, target)
    for name in sorted(names) or _names(source):
        try:
            listed, _version = index.read(source, name)
        except KernelFormatError as error:
            yield Copied(name, 0, 0, (str(error),))
            continue
        if listed is None:
            yield Copied(name, 0, 0, (f"{source.url} has no package {name}",))
        else:
            yield _copy(source, target, listed, report)
    copies.copy(source, target)


def _names(source: ObjectStore) -> list[str]:
    matches = (INDEX.fullmatch(listed.name) for listed in source.list("v1/packages/"))
    return sorted(match[1] for match in matches if match)


def _copy(source: ObjectStore, target: ObjectStore, listed: Index, report: Report) -> Copied:
    theirs, _version = index.read(target, listed.name)
    before = theirs.releases if theirs else {}
    problems, size, ready = list[str](), 0, dict[Version, Listed]()
    for number, entry in sorted(listed.releases.items()):
        if number in before and before[number].digest != entry.digest:
            problems.append(f"{listed.name} {number}: {target.url} has other files of this version")
            continue
        try:
            if number not in before:
                size += _copy_release(source, target, listed.name, number, entry, report)
            ready[number] = entry
        except (KernelFormatError, StoreError) as error:
            problems.append(str(error))

    def edit(current: Index) -> Index | None:
        same = {number: entry for number, entry in ready.items() if _agrees(current, number, entry)}
        is_current = all(current.releases.get(number) == entry for number, entry in same.items())
        # The state of the copy is that of the source: lock files that were made from one serve with the other. A yank
        # that was taken back has changed nothing else.
        if is_current and (current.sequence >= listed.sequence or not same):
            return None
        state = max(listed.sequence, current.sequence + 1)
        return current._replace(sequence=state - 1, releases={**current.releases, **same})

    index.change(target, listed.name, edit)
    return Copied(listed.name, len(ready.keys() - before.keys()), size, tuple(problems))


def _agrees(current: Index, number: Version, entry: Listed) -> bool:
    return number not in current.releases or current.releases[number].digest == entry.digest


def _copy_release(
    source: ObjectStore, target: ObjectStore, name: str, number: Version, entry: Listed, report: Report
) -> int:
    """Copies a release with its blobs; returns the bytes of the blobs. Raises StoreError, KernelFormatError."""
    file_name = release.file_name(entry.digest)
    where = f"{source.url}/{file_name}"
    stored = source.get(file_name, release.MAX_BYTES)
    if stored is None:
        raise KernelFormatError(where, "there is no such release, although the index names it", "a complete remote")
    parsed = release.parse(release.split(stored.data, entry.digest, where).data, where, name, number)
    size = 0
    had = list[functools.partial[int]]()
    for part in parsed.variants:
        send = functools.partial(_copy_blob, source, target, part.blob, report, f"{name} {number} {part.label}")
        copied = send()
        size += copied
        if not copied:
            had.append(send)
    target.put_if_absent(file_name, stored.data)
    for send in had:
        removals.keep(target, send.args[2].name, send)
    return size


def _copy_blob(source: ObjectStore, target: ObjectStore, blob: Blob, report: Report, what: str) -> int:
    """Copies a blob that the target lacks; returns its bytes. Raises StoreError, KernelFormatError."""
    with tempfile.TemporaryFile() as file:
        reported: Any = Reported(file, report, what, blob.size)
        source.download(blob.name, reported, blob.size)
        file.flush()
        file.seek(0)
        if digest_of(file.fileno()) != blob.sha256:
            raise KernelFormatError(f"{source.url}/{blob.name}", "it has other bytes", "what its name says")
        file.seek(0)
        return blob.size if target.put_if_absent(blob.name, file) else 0
