"""Publishes entries to a remote: the blob first, then the file of offers by compare-and-swap.

Two publishers at once lose nothing. One that is killed leaves at most a blob that nothing names. A blob that was there
already may be about to be removed: see `removals`.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache.filesystem.files import UNREADABLE
from opforge.cache.layout import entry_name
from opforge.cache.records.entry import read_record
from opforge.errors import PublishError
from opforge.events import emit

from . import blobs, offers, removals, revocation
from .remotes import Remote
from .signatures.keys import Signer
from .stores.protocol import ObjectStore

ATTEMPTS, PAUSE_SECONDS = 20, 0.05
"""How often the file of offers is written again after another publisher was quicker, and the first pause."""
FLAGS_HINT = "Build it without them, or add flags=1 to the remote's URL"


class Pushed(NamedTuple):
    """The result for one entry."""

    op: str
    entry: str
    description: str
    size: int
    """Bytes of the blob."""
    is_new: bool
    """False if the remote had this offer already."""


def push(store: ObjectStore, remote: Remote, folder: str, description: str, signer: Signer | None) -> Pushed:
    """Publishes the entry in a folder for a description. Without a signer its offer is unsigned.

    Raises PublishError, StoreError, ExtraNotInstalledError, OSError.
    """
    began = time.perf_counter()
    record = _record(remote, folder)
    what, entry = f"{record['op']} {os.path.basename(folder)}", entry_name(record["key"], record["sha256"])
    try:
        with tempfile.TemporaryFile() as file:
            blob = blobs.pack(folder, record, file)
            data = offers.offer_bytes(record, description, blob)
            item = offers.Signed(data, (signer(data),) if signer else ())
            file.seek(0)
            is_sent = store.put_if_absent(blob.name, file)
            if signer:
                revocation.publish(store, signer, item.signatures[0].name)
            is_new = _add(store, remote, description, item, entry, what)
            if not is_sent:

                def send() -> None:
                    file.seek(0)
                    store.put_if_absent(blob.name, file)

                removals.keep(store, blob.name, send)
    except ValueError as error:
        raise PublishError(what, str(remote), str(error), "Nothing was published") from error
    if is_new:
        seconds = round(time.perf_counter() - began, 6)
        emit("push", op=record["op"], seconds=seconds, bytes=blob.size, path=str(remote), result=entry)
    return Pushed(record["op"], entry, description, blob.size, is_new)


def description_of(folder: str) -> str:
    """Returns the description by which a stored entry was built, for `push`; empty if its record cannot be read."""
    try:
        return str((read_record(folder) or {}).get("description", ""))
    except UNREADABLE:
        return ""


def _record(remote: Remote, folder: str) -> Mapping[str, Any]:
    """Returns the record of the entry in a folder. Raises PublishError if it must not be published."""
    try:
        record = read_record(folder)
    except UNREADABLE:
        record = None
    if record is None:
        raise PublishError(folder, str(remote), "its record cannot be read", "Build the op again")
    if record["user_flags"] and not remote.takes_flags:
        flags = " ".join(f"{name}={value!r}" for name, value in record["user_flags"].items())
        raise PublishError(record["op"], str(remote), f"it was built with {flags}", FLAGS_HINT)
    return record


def _add(store: ObjectStore, remote: Remote, description: str, item: offers.Signed, entry: str, what: str) -> bool:
    """Adds an offer to the file of a description; returns False if it was there already.

    Raises PublishError, StoreError, ValueError.
    """
    name, pause = offers.name_of(description), PAUSE_SECONDS
    for attempt in range(ATTEMPTS):
        stored = store.get(name, offers.MAX_FRAME_BYTES)
        items = offers.read_frame(stored.data) if stored else []
        merged = merge(items, item, entry)
        if merged == items:
            return False
        if len(merged) > offers.MAX_OFFERS:
            hint = "Remove old ones: opforge remote gc --unused-for AGE URL"
            raise PublishError(what, str(remote), f"its description has {offers.MAX_OFFERS} offers already", hint)
        data = offers.frame(merged)
        if store.put_if_unchanged(name, data, stored.version) if stored else store.put_if_absent(name, data):
            return True
        if attempt < ATTEMPTS - 1:
            time.sleep(random.uniform(0, pause))  # noqa: S311 - publishers must not try again in step
            pause = min(2.0, pause * 1.7)
    raise PublishError(what, str(remote), "others kept changing its file of offers", "Try again")


def merge(items: list[offers.Signed], item: offers.Signed, entry: str) -> list[offers.Signed]:
    """Returns the offers with a new one: as a further signature of the same bytes, or as another offer.

    An offer of the same library by the same key stays as it is: two builds differ in how long they took.
    """
    names = {signature.name for signature in item.signatures}
    for at, other in enumerate(items):
        others = {signature.name for signature in other.signatures}
        if names <= others and (other.data == item.data or _entry_of(other) == entry):
            return items
        if other.data == item.data:
            signatures = (*other.signatures, *item.signatures)[-offers.MAX_SIGNATURES :]
            return [*items[:at], item._replace(signatures=signatures), *items[at + 1 :]]
    return [*items, item]


def _entry_of(item: offers.Signed) -> str:
    try:
        return offers.parse(item.data).entry
    except ValueError:
        return ""  # of a newer opforge, or damaged: it stays
