"""What a remote holds: lists it, verifies it, removes what nothing needs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from opforge.cache.filesystem.files import UNREADABLE
from opforge.errors import RemoteError, SignatureError, StoreError

from . import blobs, offers, removals
from .remotes import Remote
from .signatures import trust
from .stores.protocol import Listed, ObjectStore

OFFERS, BLOBS, CLAIMS = "v1/offers/", "v1/blobs/", "v1/claims/"
RELEASES, MAX_RELEASE_BYTES = "v1/releases/", 9 << 20
RELEASE_FORMAT = 1
_RELEASE_NAME = re.compile(r"v1/releases/sha256/[0-9a-f]{2}/([0-9a-f]{64})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OFFERS_NAME = re.compile(r"v1/offers/([0-9a-f]{32})\.json")
UNUSED_SECONDS = 24 * 3600.0
"""How old a blob is that no offer names, before it is removed: a publisher puts the blob first."""


class Offered(NamedTuple):
    """One offer of a remote. Times are seconds since the epoch, by the store's clock."""

    description: str
    op: str
    entry: str
    target: str
    size: int
    """Bytes of the blob."""
    blob: str
    signers: tuple[str, ...]
    modified: float
    """When the file of the description's offers was last written."""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns what `opforge remote ls --json` prints of it: these names are public."""
        return self._asdict()


def files(store: ObjectStore) -> Iterator[tuple[str, Listed, list[offers.Signed], str]]:
    """Yields (description, file, offers, problem) for each file of offers. Raises StoreError."""
    for listed in sorted(store.list(OFFERS), key=lambda listed: listed.name):
        match = _OFFERS_NAME.fullmatch(listed.name)
        if match is None:
            continue  # a lock of a folder's publisher, or none of ours
        try:
            stored = store.get(listed.name, offers.MAX_FRAME_BYTES)
            if stored is not None:
                yield match[1], listed, offers.read_frame(stored.data), ""
        except ValueError as error:
            yield match[1], listed, [], str(error)


def offered(store: ObjectStore) -> Iterator[Offered]:
    """Yields every offer of a remote. Signatures are not verified. Raises StoreError."""
    for description, listed, items, problem in files(store):
        if problem:
            yield Offered(description, "", "", "", listed.size, "", (), listed.modified, problem)
        for item in items:
            yield _offered(description, listed, item)


def _offered(description: str, listed: Listed, item: offers.Signed) -> Offered:
    signers = tuple(signature.name for signature in item.signatures)
    try:
        offer = offers.parse(item.data, description)
    except offers.UnreadableOffer as error:
        return Offered(description, "", "", "", 0, "", signers, listed.modified, str(error))
    record, blob = offer.record, offer.blob
    return Offered(
        description, record["op"], offer.entry, record["target"], blob.size, blob.name, signers, listed.modified
    )


def verify(
    store: ObjectStore, remote: Remote, on_progress: Callable[[int], None] = lambda _count: None
) -> list[Offered]:
    """Checks every offer of a remote as a fetch does, blob and library included; returns all, with their problems.

    Raises TrustFileError, StoreError if the remote cannot be listed.
    """
    trusted, checked = trust.read(), list[Offered]()
    for description, listed, items, problem in files(store):
        if problem:
            checked.append(Offered(description, "", "", "", listed.size, "", (), listed.modified, problem))
        for item in items:
            offer = _offered(description, listed, item)
            if not offer.problem:
                offer = offer._replace(problem=_problem(store, remote, trusted, item, description))
            checked.append(offer)
            on_progress(len(checked))
    return checked


def _problem(store: ObjectStore, remote: Remote, trusted: trust.Trust, item: offers.Signed, description: str) -> str:
    try:
        signers = [] if remote.is_unsigned else trusted.signers("it", item.data, item.signatures)
        offer = offers.parse(item.data, description)
        if not remote.is_unsigned:
            trust.allowed(signers, offer.record["op"], "it")
        with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "blob"), "w+b") as file:
            store.download(offer.blob.name, file, offer.blob.size)
            file.flush()
            blobs.check(file, offer.blob)
            blobs.unpack(file, offer, os.path.join(folder, "entry"))
    except SignatureError as error:
        return error.reason
    except (ValueError, RemoteError) as error:
        return str(error)
    return ""


class Unused(NamedTuple):
    """An object of a remote that nothing needs."""

    name: str
    size: int
    reason: str


def _of_packages(store: ObjectStore) -> set[str]:
    """Returns the blobs that releases of packages name. Raises StoreError, also for a release that cannot be read."""
    named = set[str]()
    for listed in store.list(RELEASES):
        match = _RELEASE_NAME.fullmatch(listed.name)
        stored = store.get(listed.name, MAX_RELEASE_BYTES) if match else None
        if match is None or stored is None:
            continue
        try:
            digests = _blobs_in_release(stored.data, match[1])
        except UNREADABLE as error:
            reason = str(error) if type(error) is ValueError else f"it is not a release ({type(error).__name__})"
            raise _unreadable(store, f"the release {listed.name} cannot be read: {reason}") from error
        named |= {f"{BLOBS}sha256/{digest[:2]}/{digest}" for digest in digests}
    return named


def _blobs_in_release(content: bytes, digest: str) -> list[str]:
    """Returns the digests of the blobs that a release's file names. Raises what UNREADABLE lists.

    Only the names of blobs are read: packages are above this.
    """
    data = content.partition(b"\n")[0]
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("its bytes are not those of its name")
    fields = json.loads(data)
    if fields["format"] != RELEASE_FORMAT:
        raise ValueError(f"its format is {fields['format']!r}, and this opforge reads {RELEASE_FORMAT}")
    digests = [part["blob"]["sha256"] for part in fields["variants"]]
    if not digests or not all(_SHA256.fullmatch(part) for part in digests):
        raise ValueError("it does not name its blobs")
    return digests


def _unreadable(store: ObjectStore, reason: str) -> StoreError:
    hint = "Run this with the newest opforge that publishes there, or remove what is damaged"
    return StoreError(store.url, "collecting what nothing names", reason, hint)


def _named(store: ObjectStore, is_old: Callable[[Listed], bool] = lambda _listed: False) -> set[str]:
    """Returns the blobs that something names, but for offers in files that `is_old` returns true for.

    Raises StoreError, also for a file that cannot be read: it may name any blob.
    """
    named = _of_packages(store)
    for description, listed, items, problem in files(store):
        if problem:
            hint = f"Correct or remove {listed.name} first"
            raise StoreError(store.url, "collecting what nothing names", f"{listed.name}: {problem}", hint)
        for item in () if is_old(listed) else items:
            try:
                named.add(offers.parse(item.data, description).blob.name)
            except offers.UnreadableOffer as error:
                raise _unreadable(store, f"an offer in {listed.name} cannot be read: {error}") from error
    return named


def _old(now: float, unused_for: float | None) -> Callable[[Listed], bool]:
    return lambda listed: unused_for is not None and now - listed.modified > unused_for


def unused(store: ObjectStore, now: float, unused_for: float | None = None) -> Iterator[Unused]:
    """Yields what `remote gc` removes: blobs that nothing names, and with `unused_for` files of offers that old.

    `now` and `unused_for` are seconds; `now` is by the store's clock. Raises StoreError, and stops at a file of offers
    or a release that cannot be read: it may name any blob.
    """
    listed_blobs = list(store.list(BLOBS))  # before the offers: one that is published meanwhile names an older blob
    is_old = _old(now, unused_for)
    named = _named(store, is_old)
    for listed in sorted(store.list(OFFERS), key=lambda listed: listed.name):
        if _OFFERS_NAME.fullmatch(listed.name) and is_old(listed):
            days = (now - listed.modified) / 86400
            yield Unused(listed.name, listed.size, f"nothing was published for it for {days:.0f} d")
    for blob in listed_blobs:
        if blob.name not in named and now - blob.modified > UNUSED_SECONDS:
            yield Unused(blob.name, blob.size, "no offer and no release names it")
    for claim in store.list(CLAIMS):
        if now - claim.modified > UNUSED_SECONDS:
            yield Unused(claim.name, claim.size, "its owner is gone")


def collect(store: ObjectStore, now: float, unused_for: float | None = None) -> Iterator[Unused]:
    """Removes what `unused` yields, and yields what was removed: not a blob that is being published again.

    Raises StoreError.
    """
    items, is_old = list(unused(store, now, unused_for)), _old(now, unused_for)
    new = {listed.name for listed in store.list(OFFERS) if not is_old(listed)}  # published to meanwhile
    for item in items:
        if not item.name.startswith(BLOBS) and item.name not in new:
            store.delete(item.name)
            yield item
    blobs_of = {item.name: item for item in items if item.name.startswith(BLOBS)}
    for name in removals.remove(store, blobs_of, lambda: _named(store), now):
        yield blobs_of[name]
