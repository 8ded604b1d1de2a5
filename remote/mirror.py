"""Copies topics to another store, whatever their kinds: signatures stay as they are, so that no key is needed."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from opforge.errors import PublishError, StoreError

from . import blobs, kinds, maintenance, statements, topics, withdrawals
from .maintenance import Placed
from .removals import Uploads
from .stores.protocol import Listed as StoredFile
from .stores.protocol import ObjectStore
from .topics import Listing, Topic
from .transfer import Report, Reported, ignore

Accepts = Callable[[str, str], bool]
"""Returns whether a statement is copied, by its kind and the name of its op or package."""


class Copied(NamedTuple):
    """One topic that was copied."""

    kind: str
    topic: str
    statements: int
    """Those that the target had not."""
    size: int
    """Bytes of the blobs that were copied."""
    problems: tuple[str, ...] = ()


def copy(
    source: ObjectStore,
    target: ObjectStore,
    accepts: Accepts = lambda _kind, _name: True,
    report: Report = ignore,
    kind: str = "",
) -> Iterator[Copied]:
    """Copies what the target lacks, blobs first; yields each topic. Lists of withdrawals are copied first.

    With `kind`, topics of other kinds are not read. Each blob is compared with its statement; signatures are verified
    by those who load. A label under which the target has another statement is left alone and reported. Raises
    StoreError, PublishError.
    """
    done = set[str]()
    for topic in topics.in_store(source, kind):
        copied = copy_topic(source, target, topic, accepts, report, done)
        if copied is not None:
            yield copied


def copy_named(
    source: ObjectStore, target: ObjectStore, kind: str, names: Collection[str], report: Report = ignore
) -> Iterator[Copied]:
    """Copies these topics of a kind, as `copy` does. The source need not be able to list what it holds."""
    done = set[str]()
    for topic in sorted(names):
        name = topics.name_of(kind, topic)
        stored = source.get(name, topics.MAX_LISTING_BYTES)
        if stored is None:
            yield Copied(kind, topic, 0, 0, (f"{source.url} has no {kind} {topic}",))
            continue
        read = topics.read(stored.data, kind, topic, StoredFile(name, len(stored.data), 0.0))
        copied = copy_topic(source, target, read, lambda _kind, _name: True, report, done)
        if copied is not None:
            yield copied


def copy_topic(
    source: ObjectStore, target: ObjectStore, topic: Topic, accepts: Accepts, report: Report, done: set[str]
) -> Copied | None:
    """Copies one topic; None if it holds no statement that `accepts` names. Raises StoreError, PublishError.

    `done` are the keys whose lists of withdrawals were copied.
    """
    if topic.problem:
        return Copied(topic.kind, topic.topic, 0, 0, (topic.problem,))
    theirs = _labels(target, topic) if topic.listing else {}
    uploads = Uploads(target)
    size, problems, ready = 0, list[str](), list[Placed]()
    for placed in maintenance.of_topic(source, topic):
        try:
            if placed.problem:
                raise ValueError(f"{placed.label}: {placed.problem}")
            if not accepts(topic.kind, _name(topic, placed)):
                continue
            canonical = _canonical(topic, placed.label)
            if theirs.get(canonical, placed.signed.digest) != placed.signed.digest:
                raise ValueError(f"{topic.topic} {placed.label}: {target.url} has other files of this version")
            if canonical not in theirs:
                size += _copy_trees(source, uploads, target, placed, report, f"{topic.topic} {placed.label}".strip())
            ready.append(placed)
        except (ValueError, StoreError) as error:
            problems.append(str(error))
    if not ready and not problems:
        return None
    signers = {signature.name for placed in ready for signature in placed.signed.signatures}
    copy_withdrawals(source, target, sorted(signers - done))
    done |= signers
    count = _merge_items(target, topic, ready) if topic.listing is None else _merge_labels(target, topic, ready, theirs)
    uploads.keep()
    return Copied(topic.kind, topic.topic, count, size, tuple(problems))


def _name(topic: Topic, placed: Placed) -> str:
    """Returns the name of a statement's op or package; its topic's if the kind is unknown, or it cannot be read."""
    kind = kinds.of(topic.kind)
    try:
        return kind.shown(statements.parse(placed.signed.data)).name if kind else topic.topic
    except ValueError:
        return topic.topic


def _labels(target: ObjectStore, topic: Topic) -> dict[str, str]:
    """Returns the digest of each statement that the target's topic names, by its label in canonical form."""
    listing = topics.read_named(target, topic.kind, topic.topic) or Listing(topic.kind, topic.topic)
    return {_canonical(topic, label): listed.digest for label, listed in listing.statements.items()}


def _canonical(topic: Topic, label: str) -> str:
    kind = kinds.of(topic.kind)
    return kind.canonical(label) if kind and label else label


def _copy_trees(
    source: ObjectStore, uploads: Uploads, target: ObjectStore, placed: Placed, report: Report, what: str
) -> int:
    """Copies the blobs of a statement, then its file; returns the bytes of the blobs. BlobError, StoreError."""
    size = 0
    for tree in statements.parse(placed.signed.data).trees:
        send = functools.partial(_copy_blob, source, target, tree.blob, report, f"{what} {tree.digest[:8]}")
        size += tree.blob.size if uploads.send(tree.blob.name, send) else 0
    if placed.label:
        name, content = statements.name_of(placed.signed.digest), placed.signed.file()
        uploads.send(name, lambda: target.put_if_absent(name, content))
    return size


def _copy_blob(source: ObjectStore, target: ObjectStore, blob: blobs.Blob, report: Report, what: str) -> bool:
    """Copies a blob; returns whether the target had none of this name. Raises BlobError, StoreError."""
    with tempfile.TemporaryFile() as file:
        reported: Any = Reported(file, report, what, blob.size)
        source.download(blob.name, reported, blob.size)
        blobs.check(file, blob)
        return target.put_if_absent(blob.name, file)


def _merge_items(target: ObjectStore, topic: Topic, ready: list[Placed]) -> int:
    """Adds statements to a topic that holds them; returns how many are new. Raises StoreError, PublishError."""
    new: list[statements.Signed] = []

    def change(stored: bytes | None) -> bytes | None:
        before = topics.read_frame(stored) if stored is not None else []
        new[:] = [placed.signed for placed in ready if placed.signed not in before]
        replaced = {item.data for item in new}
        kept = [item for item in before if item.data not in replaced]
        return topics.frame([*kept, *new][-topics.MAX_ITEMS :]) if new else None

    name = topics.name_of(topic.kind, topic.topic)
    topics.edit(target, name, topics.MAX_FRAME_BYTES, change, f"{topic.kind} {topic.topic}")
    return len(new)


def _merge_labels(target: ObjectStore, topic: Topic, ready: list[Placed], theirs: dict[str, str]) -> int:
    """Adds labels to a topic that names its statements; returns how many are new. Raises StoreError, PublishError."""
    listing = topic.listing
    assert listing is not None  # the caller has looked

    def change(stored: bytes | None) -> bytes | None:
        current = Listing(topic.kind, topic.topic)
        if stored is not None:
            current = topics.read_listing(stored, topic.kind, topic.topic)
        own = current.statements
        taken = {_canonical(topic, label): label for label in own}
        same = {
            label: listing.statements[label]
            for label, digest in ((placed.label, placed.signed.digest) for placed in ready)
            if taken.setdefault(_canonical(topic, label), label) == label
            and (label not in own or own[label].digest == digest)
        }
        is_current = all(own.get(label) == listed for label, listed in same.items())
        # The state of the copy is that of the source: lock files that were made from one serve with the other.
        if is_current and (current.sequence >= listing.sequence or not same):
            return None
        state = max(listing.sequence, current.sequence + 1)
        return current._replace(sequence=state, statements={**own, **same}).data()

    name = topics.name_of(topic.kind, topic.topic)
    topics.edit(target, name, topics.MAX_LISTING_BYTES, change, f"{topic.kind} {topic.topic}")
    return len({_canonical(topic, placed.label) for placed in ready} - theirs.keys())


def copy_withdrawals(source: ObjectStore, target: ObjectStore, keys: Iterable[str]) -> None:
    """Copies the lists of withdrawals of some keys, unless the target has newer ones. Raises StoreError, PublishError.

    A source that cannot list is asked for each: what is withdrawn must not be copied without that.
    """
    for key in keys:
        _copy_newest(source, target, withdrawals.name_of(key))


def _copy_newest(source: ObjectStore, target: ObjectStore, name: str) -> None:
    ours = source.get(name, withdrawals.MAX_BYTES)
    if ours is None:
        return

    def date_of(data: bytes) -> float:
        try:
            return withdrawals.parse(withdrawals.signed(data).data).date
        except ValueError as error:
            raise PublishError(name, target.url, str(error), "Make it anew: opforge withdraw URL") from error

    date = date_of(ours.data)
    topics.edit(
        target,
        name,
        withdrawals.MAX_BYTES,
        lambda theirs: None if theirs is not None and date_of(theirs) >= date else ours.data,
    )
