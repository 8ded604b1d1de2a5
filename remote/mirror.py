"""Copies topics to another store, whatever their kinds. Statements keep their signatures: no secret key is needed.

What is copied was signed by a key that is trusted here for its name, as for a load: whoever controls the source could
otherwise fill the target. Nothing of the target is dropped or replaced: of one statement the signatures of both are
kept, and a list of withdrawals gives way only to a newer one by the same key that says all of it. A signature is copied
after its key's list: where that cannot be, the target would offer what the key has withdrawn.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from opforge.errors import PublishError, SignatureError, StoreError

from . import blobs, contents, kinds, publish, statements, topics, withdrawal_lists
from .accepted_statements import counted
from .contents import Placed
from .removals import Uploads
from .signatures import signing, trust_file
from .signatures.trust_file import Trust, TrustedKey
from .statements import Signed, UnreadableStatement
from .stores.protocol import ListedObject as StoredFile
from .stores.protocol import ObjectStore
from .topics import Listing, Topic
from .transfer import Report, Reported, ignore
from .withdrawal_lists import Withdrawals

Accepts = Callable[[str, str, str], bool]
"""Returns whether a statement is copied, by its kind, its name, such as that of its op, and its label."""


class Copied(NamedTuple):
    """A topic that was copied."""

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
    accepts: Accepts = lambda _kind, _name, _label: True,
    report: Report = ignore,
    kind: str = "",
    is_unsigned: bool = False,
) -> Iterator[Copied]:
    """Copies the files that the target lacks, blobs first. Yields each topic. Lists of withdrawals are copied first.

    With `kind`, topics of other kinds are not read. Each statement is verified with the keys that are trusted here,
    unless both stores have the option unsigned=1, and each blob is compared with its statement. What is not accepted,
    a label under which the target has another statement, and a topic that is full are left alone and reported. Raises
    StoreError, PublishError, TrustFileError.
    """
    copying = Copying(source, target, report, is_unsigned)
    for topic in topics.in_store(source, kind):
        if (copied := copying.topic(topic, accepts)) is not None:
            yield copied


def copy_named(
    source: ObjectStore,
    target: ObjectStore,
    kind: str,
    names: Collection[str],
    report: Report = ignore,
    is_unsigned: bool = False,
) -> Iterator[Copied]:
    """Copies these topics of a kind, as `copy` does. The source need not be able to list what it holds."""
    copying = Copying(source, target, report, is_unsigned)
    for topic in sorted(names):
        name = topics.name_of(kind, topic)
        stored = source.get(name, topics.MAX_LISTING_BYTES)
        if stored is None:
            yield Copied(kind, topic, 0, 0, (f"{source.url} has no {kind} {topic}",))
            continue
        read = topics.read(stored.data, kind, topic, StoredFile(name, len(stored.data), 0.0))
        if (copied := copying.topic(read, lambda _kind, _name, _label: True)) is not None:
            yield copied


class Copying:
    """Copies from one store to another, with the keys that are trusted now."""

    def __init__(self, source: ObjectStore, target: ObjectStore, report: Report, is_unsigned: bool) -> None:
        """Reads the trust file. Raises TrustFileError."""
        self._source, self._target, self._report = source, target, report
        self._trust = None if is_unsigned else trust_file.read()
        self._done = set[TrustedKey]()
        """The keys whose lists of withdrawals were copied."""

    def topic(self, topic: Topic, accepts: Accepts) -> Copied | None:
        """Copies one topic; None if it holds no statement that `accepts` names. Raises StoreError."""
        if topic.problem:
            return Copied(topic.kind, topic.topic, 0, 0, (topic.problem,))
        theirs = _labels(self._target, topic) if topic.listing else {}
        uploads = Uploads(self._target)
        size, problems, ready, failed = 0, list[str](), list[Placed](), dict[TrustedKey, str]()
        for placed in contents.of_topic(self._source, topic):
            try:
                if placed.problem:
                    raise ValueError(f"{placed.label}: {placed.problem}")
                if not accepts(topic.kind, *_named(topic, placed)):
                    continue
                placed, keys = _verified(self._trust, topic, placed)
                canonical = _canonical(topic, placed.label)
                if theirs.get(canonical, placed.signed.digest) != placed.signed.digest:
                    other = f"{self._target.url} has other files of this version"
                    raise ValueError(f"{topic.topic} {placed.label}: {other}")
                placed = self._with_lists(placed, keys, failed)
                if keys and not placed.signed.signatures:
                    continue  # `failed` says why
                size += self._send(uploads, placed, f"{topic.topic} {placed.label}".strip())
                ready.append(placed)
            except SignatureError as error:
                problems.append(f"{placed.label}: {error.reason}" if placed.label else error.reason)
            except (ValueError, StoreError) as error:
                problems.append(str(error))
        problems += failed.values()
        if not ready and not problems:
            return None
        count = 0
        try:
            if topic.listing is None:
                count = _merge_items(self._target, topic, ready)
            else:
                count = _merge_labels(self._target, topic, ready, theirs)
        except (ValueError, PublishError) as error:
            problems.append(str(error))
        uploads.keep()
        return Copied(topic.kind, topic.topic, count, size, (counted(problems),) if problems else ())

    def _with_lists(self, placed: Placed, keys: Iterable[TrustedKey], failed: dict[TrustedKey, str]) -> Placed:
        """Copies the lists of withdrawals of the keys that signed a statement; returns it with the signatures of those.

        Without its list a signature is not copied: the target would offer what is withdrawn. `failed` gets the keys
        whose lists could not be copied, and why. They are tried again with the next topic.
        """
        for key in keys:
            if key in self._done or key in failed:
                continue
            try:
                _copy_list(self._source, self._target, key)
                self._done.add(key)
            except (ValueError, StoreError, PublishError) as error:
                failed[key] = str(error)
        signed, without = placed.signed, [key.key for key in keys if key in failed]
        if not without:
            return placed
        lost = {one for one in signed.signatures for key in without if signing.is_signed(signed.data, one, key)}
        kept = tuple(one for one in signed.signatures if one not in lost)
        return placed._replace(signed=signed._replace(signatures=kept))

    def _send(self, uploads: Uploads, placed: Placed, what: str) -> int:
        """Copies the blobs of a statement, then its file; returns the bytes of the blobs. BlobError, StoreError."""
        size = 0
        for tree in statements.parse(placed.signed.data).trees:
            label = f"{what} {tree.digest[:8]}"
            send = functools.partial(_copy_blob, self._source, self._target, tree.blob, self._report, label)
            size += tree.blob.size if uploads.send(tree.blob.name, send) else 0
        if placed.label:
            name = statements.name_of(placed.signed.digest)
            uploads.send(name, functools.partial(publish.add_signatures, self._target, name, placed.signed))
        return size


def _verified(by: Trust | None, topic: Topic, placed: Placed) -> tuple[Placed, list[TrustedKey]]:
    """Returns a statement with those of its signatures that are accepted here, and their keys.

    Without `by` it is taken as it is. Raises SignatureError, UnreadableStatement if it is of another topic or label.
    """
    if by is None:
        return placed, []
    data, what = placed.signed.data, f"{topic.kind} {topic.topic}"
    keys = by.signers(what, data, placed.signed.signatures)
    stated = statements.parse(data)
    if (stated.kind, stated.topic) != (topic.kind, topic.topic):
        raise UnreadableStatement(f"it was made for another topic: {stated.kind} {ascii(stated.topic)[:100]}")
    if (kind := kinds.of(topic.kind)) is not None:
        try:
            offer = kind.offer(stated)
        except ValueError as error:
            raise UnreadableStatement(f"{placed.label} {error}".strip()) from error
        keys = trust_file.allowed(keys, offer.subject, what)
        if placed.label and placed.label != offer.label:
            raise UnreadableStatement(f"its topic names it {placed.label}, and it is {offer.label}")
    good = [one for one in placed.signed.signatures if any(signing.is_signed(data, one, key.key) for key in keys)]
    return placed._replace(signed=Signed(data, tuple(good))), keys


def _named(topic: Topic, placed: Placed) -> tuple[str, str]:
    """Returns the name and the label of a statement; its topic's if the kind is unknown, or it cannot be read."""
    kind = kinds.of(topic.kind)
    try:
        if kind is not None:
            offer = kind.offer(statements.parse(placed.signed.data))
            return offer.name, offer.label
    except ValueError:
        pass
    return topic.topic, placed.label


def _labels(target: ObjectStore, topic: Topic) -> dict[str, str]:
    """Returns the digest of each statement that the target's topic names, by its label in canonical form."""
    listing = topics.read_named(target, topic.kind, topic.topic) or Listing(topic.kind, topic.topic)
    return {_canonical(topic, label): listed.digest for label, listed in listing.statements.items()}


def _canonical(topic: Topic, label: str) -> str:
    kind = kinds.of(topic.kind)
    return kind.canonical(label) if kind and label else label


def _copy_blob(source: ObjectStore, target: ObjectStore, blob: blobs.Blob, report: Report, what: str) -> bool:
    """Copies a blob; returns whether the target had none of this name. Raises BlobError, StoreError."""
    with tempfile.TemporaryFile() as file:
        reported: Any = Reported(file, report, what, blob.size)
        source.download(blob.name, reported, blob.size)
        blobs.check(file, blob)
        return target.put_if_absent(blob.name, file)


def _merge_items(target: ObjectStore, topic: Topic, ready: list[Placed]) -> int:
    """Adds statements to a topic that holds them; returns how many are new, or have new signatures.

    Raises StoreError, PublishError if the topic is full, ValueError.
    """
    count = 0

    def change(before: list[Signed]) -> list[Signed]:
        nonlocal count
        after, count = list(before), 0
        for signed in (placed.signed for placed in ready):
            places = [at for at, item in enumerate(after) if item.data == signed.data]  # two keys may have one each
            known = {signature for at in places for signature in after[at].signatures}
            if places and known >= {*signed.signatures}:
                continue
            count += 1
            if places:
                new = tuple(signature for signature in signed.signatures if signature not in known)
                after[places[0]] = publish.union(after[places[0]], signed._replace(signatures=new))
            else:
                after.append(signed)
        return after

    name = topics.name_of(topic.kind, topic.topic)
    topics.edit_items(target, name, change, f"{topic.kind} {topic.topic}", target.url)
    return count


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


def _copy_list(source: ObjectStore, target: ObjectStore, key: TrustedKey) -> None:
    """Copies the list of withdrawals of a key, unless the target has it or a newer one.

    A source that cannot list is asked too. Raises ValueError if it must not take that one's place, StoreError,
    PublishError.
    """
    name = withdrawal_lists.name_of(key.key.name)
    ours = source.get(name, withdrawal_lists.MAX_BYTES)
    if ours is None:
        return
    listed = _list_in(source, ours.data, key)

    def change(stored: bytes | None) -> bytes | None:
        there = _list_in(target, stored, key) if stored is not None else None
        if there is None or (listed.order > there.order and not listed.lacks(there)):
            return ours.data
        if there.lacks(listed):
            problem = f"the one in {target.url} differs from the one in {source.url}"
            hint = f"the holder of the key brings them together: opforge withdraw {target.url} NAME"
            raise ValueError(f"{withdrawal_lists.WHAT} of {key.key.name}: {problem}; {hint}")
        return None

    topics.edit(target, name, withdrawal_lists.MAX_BYTES, change)


def _list_in(store: ObjectStore, content: bytes, key: TrustedKey) -> Withdrawals:
    try:
        return withdrawal_lists.verified(content, key)
    except ValueError as error:
        raise ValueError(f"{store.url}: {error}") from error
