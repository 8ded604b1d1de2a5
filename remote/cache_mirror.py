"""Copies what this machine's cache holds to a store: signs what was made here, and keeps the statements of the rest.

What was fetched goes into a folder first, a store like any other: its statements as they were signed, its blobs, packed
again, and the lists of the keys as they were read last. From there it is copied as from any remote. So what a key may
sign, and what it has withdrawn, counts as always.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from opforge.cache.layout import Layout
from opforge.cache.maintenance import listing
from opforge.cache.records import fetched, triton, tuned
from opforge.cache.records.fetched import Fetched
from opforge.errors import PublishError

from . import answers, blobs, kept, mirror, publish, publish_triton, publish_tuned, statements, topics, withdrawals
from .mirror import Copied
from .remotes import Remote
from .signatures import trust
from .signatures.keys import Signer
from .stores import open_store
from .stores.protocol import ObjectStore
from .transfer import Report, ignore

OTHER_BYTES = "it cannot be packed to the bytes that its key has signed: copy it from its remote with opforge mirror"


class _Kept(NamedTuple):
    """Something that was fetched: its statement, and its files."""

    what: str
    note: Fetched
    folder: str
    paths: tuple[str, ...]


def copy(
    layout: Layout,
    owners: Collection[int],
    store: ObjectStore,
    target: Remote,
    signer: Signer | None,
    report: Report = ignore,
) -> Iterator[Copied]:
    """Copies ops, tuning results and kernels of Triton's that a cache holds, and yields what became of each.

    Raises StoreError, PublishError, TrustFileError, ExtraNotInstalledError.
    """
    yield from _own(layout, owners, store, target, signer)
    with tempfile.TemporaryDirectory() as scratch:
        source, problems = open_store(f"file://{scratch}"), list[str]()
        for one in _fetched(layout, owners):
            try:
                _put(source, one)
            except (ValueError, OSError) as error:
                problems.append(f"{one.what}: {error}")
        yield from mirror.copy(source, store, report=report)
        if problems:
            yield Copied("cache", layout.root, 0, 0, tuple(problems))


def _own(
    layout: Layout, owners: Collection[int], store: ObjectStore, target: Remote, signer: Signer | None
) -> Iterator[Copied]:
    """Publishes what was made here. What fails is one problem, and stops nothing else."""
    for entry in listing.entries(layout):
        folder = layout.entry(entry.key)
        if entry.problem or publish.came_from(folder):
            continue
        try:
            done = publish.push(store, target, folder, publish.description_of(folder), signer)
            yield Copied("op", done.op, int(done.is_new), done.size if done.is_new else 0)
        except (PublishError, OSError) as error:
            yield Copied("op", entry.op, 0, 0, (str(error),))
    for result in tuned.stored(layout.root, owners):
        if result.problem or result.is_fetched:
            continue
        try:
            timed = publish_tuned.push_stored(store, target, result, signer)
            yield Copied("tuned", timed.op, int(timed.is_new), 0)
        except PublishError as error:
            yield Copied("tuned", result.path, 0, 0, (str(error),))
    for kernel in triton.stored(layout.root):
        if kernel.is_fetched:
            continue
        try:
            pushed = publish_triton.push(store, target, kernel, signer)
            yield Copied("triton", pushed.name, int(pushed.is_new), pushed.size if pushed.is_new else 0)
        except (PublishError, OSError) as error:
            yield Copied("triton", kernel.name, 0, 0, (str(error),))


def _fetched(layout: Layout, owners: Collection[int]) -> Iterator[_Kept]:
    """Yields what was fetched into a cache. What is damaged is left out: `opforge verify` names it."""
    for entry in listing.entries(layout):
        record = listing.record_of(layout, entry.key) or {}
        note = _note(os.path.join(layout.fetched(str(record.get("description"))), entry.key))
        if note and not entry.problem:
            yield _Kept(f"{entry.op} {entry.key[:12]}", note, layout.entry(entry.key), (str(record["file"]),))
    for result in tuned.stored(layout.root, owners):
        note = _note(result.path) if result.is_fetched else None
        if note and not result.problem:
            yield _Kept(f"tuned:{result.value['op']}", note, "", ())
    for kernel in triton.stored(layout.root):
        note = _note(os.path.join(kernel.folder, triton.FETCHED)) if kernel.is_fetched else None
        if note:
            yield _Kept(f"triton:{kernel.name}", note, kernel.folder, tuple(kernel.record["files"]))


def _note(path: str) -> Fetched | None:
    """Returns what is kept of a statement; None without one, as for what an archive brought."""
    try:
        note = fetched.read(path)
    except (OSError, ValueError):
        return None
    return note if note.offer else None


def _put(source: ObjectStore, one: _Kept) -> None:
    """Puts something into the folder: its blob, its statement, its keys' lists. Raises ValueError, OSError."""
    item = kept.item_of(one.note)
    stated = statements.parse(item.data)
    if stated.trees:
        with tempfile.TemporaryFile() as file:
            tree, _hashes = blobs.pack(one.folder, one.paths, file)
            if (tree,) != stated.trees:
                raise ValueError(OTHER_BYTES)
            source.put_if_absent(tree.blob.name, file)
    _put_lists(source, one.note.remote, [key for key in trust.read().keys if key.key.name in item.signers])
    topics.edit_items(
        source, topics.name_of(stated.kind, stated.topic), lambda before: [*before, item], one.what, source.url
    )


def _put_lists(source: ObjectStore, remote: str, signers: Iterable[trust.TrustedKey]) -> None:
    """Puts the lists of keys into the folder, as they were read last from a remote: of two the newer."""
    for signer in signers:
        noted, name = answers.withdrawn(remote, signer), withdrawals.name_of(signer.key.name)
        if noted is None or noted.listed is None:
            continue
        there = source.get(name, withdrawals.MAX_BYTES)
        if there is None:
            source.put_if_absent(name, noted.content)
        elif withdrawals.verified(there.data, signer).order < noted.listed.order:
            source.put_if_unchanged(name, noted.content, there.version)
