"""Copies a remote to another one: offers with their signatures as they are, so that no key is needed."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from opforge.errors import PublishError, StoreError

from . import blobs, maintenance, offers, removals, revocation
from .stores.protocol import ObjectStore

REVOKED = "v1/revoked/"


class Copied(NamedTuple):
    """One description that was copied."""

    description: str
    offers: int
    """The offers that the target had not."""
    size: int
    """Bytes of the blobs that were copied."""
    problem: str = ""


def copy(
    source: ObjectStore, target: ObjectStore, accepts: Callable[[str], bool] = lambda _op: True
) -> Iterator[Copied]:
    """Copies what the target lacks, blobs first; yields each description. Lists of revoked offers are copied first.

    `accepts` returns whether the offers of an op are copied. Each blob is compared with its offer; signatures are
    verified by those who fetch. Raises StoreError, PublishError.
    """
    for listed in source.list(REVOKED):
        _copy_newest(source, target, listed.name)
    for description, _listed, items, problem in maintenance.files(source):
        if problem:
            yield Copied(description, 0, 0, problem)
            continue
        yield _copy_offers(source, target, description, items, accepts)


def _copy_newest(source: ObjectStore, target: ObjectStore, name: str) -> None:
    """Copies a list of revoked offers, unless the target has a newer one. Raises StoreError, PublishError."""
    for _attempt in range(revocation.ATTEMPTS):
        ours, theirs = source.get(name, offers.MAX_FRAME_BYTES), target.get(name, offers.MAX_FRAME_BYTES)
        if ours is None:
            return
        try:
            dates = [
                revocation.parse(offers.read_frame(stored.data)[0].data).date for stored in (ours, theirs) if stored
            ]
        except (ValueError, IndexError) as error:
            raise PublishError(name, target.url, str(error), "Make it anew: opforge remote revoke URL") from error
        if theirs is not None and dates[0] <= dates[1]:
            return
        if theirs is None and target.put_if_absent(name, ours.data):
            return
        if theirs is not None and target.put_if_unchanged(name, ours.data, theirs.version):
            return
    raise PublishError(name, target.url, "others kept changing it", "Try again")


def _copy_offers(
    source: ObjectStore,
    target: ObjectStore,
    description: str,
    items: list[offers.Signed],
    accepts: Callable[[str], bool],
) -> Copied:
    name, size, problems, ready = offers.name_of(description), 0, list[str](), list[offers.Signed]()
    had = list[offers.Blob]()
    for item in items:
        try:
            offer = offers.parse(item.data, description)
            if not accepts(offer.record["op"]):
                continue
            copied = _copy_blob(source, target, offer.blob)
            size += copied
            ready.append(item)
            had += [] if copied else [offer.blob]
        except (ValueError, StoreError) as error:
            problems.append(str(error))
    for _attempt in range(revocation.ATTEMPTS):
        stored = target.get(name, offers.MAX_FRAME_BYTES)
        before = offers.read_frame(stored.data) if stored else []
        new = [item for item in ready if item not in before]
        if not new:
            _keep(source, target, had)
            return Copied(description, 0, size, "; ".join(problems))
        replaced = {item.data for item in new}
        data = offers.frame([*(item for item in before if item.data not in replaced), *new][-offers.MAX_OFFERS :])
        if target.put_if_unchanged(name, data, stored.version) if stored else target.put_if_absent(name, data):
            _keep(source, target, had)
            return Copied(description, len(new), size, "; ".join(problems))
    raise PublishError(description, target.url, "others kept changing its file of offers", "Try again")


def _keep(source: ObjectStore, target: ObjectStore, had: list[offers.Blob]) -> None:
    """Makes sure that blobs stay that the target had already. Raises BlobError, StoreError."""
    for blob in had:
        removals.keep(target, blob.name, functools.partial(_copy_blob, source, target, blob))


def _copy_blob(source: ObjectStore, target: ObjectStore, blob: offers.Blob) -> int:
    """Copies a blob that the target lacks; returns its bytes. Raises BlobError, StoreError."""
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "blob"), "w+b") as file:
        source.download(blob.name, file, blob.size)
        file.flush()
        blobs.check(file, blob)
        return blob.size if target.put_if_absent(blob.name, file) else 0
