"""Copies this machine's cache to a store: signs artifacts made here, and keeps the statements of the others.

What was fetched goes into a folder first, a store like any other: its statements as they were signed, its blobs, packed
again, and the lists of the keys as they were read last. From there it is copied as from any remote. So what a key may
sign, and what it has withdrawn, counts as always.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator

from opforge.cache.layout import Layout
from opforge.cache.records import fetched_offer
from opforge.cache.records.fetched_offer import FetchedOffer
from opforge.errors import PublishError

from . import blobs, kinds, mirror, publish, remembered_answers, reverification, statements, topics, withdrawal_lists
from .kinds import Kind, StoredArtifact
from .mirror import Copied
from .remotes import Remote
from .signatures import trust_file
from .signatures.keys import Signer
from .stores import open_store
from .stores.protocol import ObjectStore
from .transfer import Report, ignore

OTHER_BYTES = "it cannot be packed to the bytes that its key has signed: copy it from its remote with opforge mirror"

DIFFER = "copy what it signed from its remotes with opforge mirror, after the holder of the key brought them together"
NO_STATEMENT = "it is not copied: nothing is kept of the statement by which it was fetched"


def copy(
    layout: Layout,
    store: ObjectStore,
    target: Remote,
    signer: Callable[[], Signer | None],
    report: Report = ignore,
    chosen: Collection[str] | None = None,
) -> Iterator[Copied]:
    """Copies the artifacts of every kind in a cache, or those with the paths `chosen`. Yields the outcome of each.

    `signer` is called for what was made here, before anything is written: a machine that only fetches has no key.

    Raises StoreError, PublishError, TrustFileError, ExtraNotInstalledError, and what `signer` raises.
    """
    fetched_ones, problems = list[tuple[Kind, StoredArtifact]](), list[str]()
    for kind in kinds.every():
        for one in kind.stored(layout):
            if chosen is not None and one.path not in chosen:
                continue
            if kind.origin(one) or one.is_fetched:
                fetched_ones.append((kind, one))
            elif one.problem:
                problems.append(f"{kind.name}:{one.name or one.path}: {one.problem}")
            else:
                yield _pushed(store, target, kind, one, signer())
    with tempfile.TemporaryDirectory() as scratch:
        source = open_store(f"file://{scratch}")
        for kind, one in fetched_ones:
            note = _note(one.note)
            if note is None or one.problem:
                problems.append(f"{kind.name}:{one.name or one.path}: {one.problem or NO_STATEMENT}")
                continue
            try:
                _put(source, kind, one, note)
            except (ValueError, OSError) as error:
                problems.append(f"{kind.name}:{one.name}: {error}")
        yield from mirror.copy(source, store, report=report)
        if problems:
            yield Copied("cache", layout.root, 0, 0, tuple(problems))


def _pushed(store: ObjectStore, target: Remote, kind: Kind, one: StoredArtifact, signer: Signer | None) -> Copied:
    """Publishes an artifact that was made here. A failure is returned as its problem, and stops nothing else."""
    try:
        done = publish.push(store, target, kind, one, signer)
    except (PublishError, OSError) as error:
        return Copied(kind.name, one.name, 0, 0, (str(error),))
    return Copied(kind.name, done.name, int(done.is_new), done.size if done.is_new else 0)


def _note(path: str) -> FetchedOffer | None:
    """Returns the stored offer of a fetched artifact; None if there is none, or it cannot be read."""
    try:
        return fetched_offer.read(path) if path else None
    except (OSError, ValueError):
        return None


def _put(source: ObjectStore, kind: Kind, one: StoredArtifact, note: FetchedOffer) -> None:
    """Puts something into the folder: its blob, its statement, its keys' lists. Raises ValueError, OSError."""
    item = reverification.item_of(note)
    stated = statements.parse(item.data)
    if stated.trees:
        with tempfile.TemporaryFile() as file:
            tree, _hashes = blobs.pack(*kind.files(one), file)
            if (tree,) != stated.trees:
                raise ValueError(OTHER_BYTES)
            source.put_if_absent(tree.blob.name, file)
    _put_lists(source, note.remote, [key for key in trust_file.read().keys if key.key.name in item.signers])
    topics.edit_items(
        source, topics.name_of(stated.kind, stated.topic), lambda before: [*before, item], one.name, source.url
    )


def _put_lists(source: ObjectStore, remote: str, signers: Iterable[trust_file.TrustedKey]) -> None:
    """Puts the lists of keys into the folder, as they were read last from a remote: of two the newer."""
    for signer in signers:
        noted, name = remembered_answers.withdrawn(remote, signer), withdrawal_lists.name_of(signer.key.name)
        if noted is None or noted.listed is None:
            continue
        there = source.get(name, withdrawal_lists.MAX_BYTES)
        if there is None:
            source.put_if_absent(name, noted.content)
            continue
        before = withdrawal_lists.verified(there.data, signer)
        if noted.listed.order > before.order and not noted.listed.lacks(before):
            source.put_if_unchanged(name, noted.content, there.version)
        elif before.lacks(noted.listed):
            problem = f"{withdrawal_lists.WHAT} of {signer.key.name} that {remote} has differs from another remote's"
            raise ValueError(f"{problem}: {DIFFER}")
