"""Lists of revoked offers: each key has one in a remote, signed by that key, with the date at which it was made.

    v1/revoked/NAME.json     NAME is the key's

An offer is accepted only with a list of the key that signed it that is new enough: who controls the store could
otherwise hide the newest list, or all of them. Another key cannot revoke an offer, and cannot vouch that none is
revoked.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Collection
from datetime import datetime, timezone
from typing import NamedTuple

from opforge import formats
from opforge.cache.filesystem.files import UNREADABLE
from opforge.cache.keys import bytes_digest, canonical
from opforge.cache.layout import DIGITS
from opforge.errors import PublishError, SettingError, StoreError
from opforge.errors.base import damage

from . import topics
from .signatures import own_lists
from .signatures.keys import Signer
from .signatures.seen import Seen
from .signatures.signing import is_signed
from .signatures.trust import TrustedKey
from .statements import Signed
from .stores.protocol import ObjectStore
from .topics import MAX_FRAME_BYTES, frame, read_frame

ENTRY = re.compile(rf"[0-9a-f]{{32}}-[0-9a-f]{{{DIGITS}}}")
DATE = "%Y-%m-%dT%H:%M:%SZ"
RENEW_SECONDS = 24 * 3600.0
"""How old a list is before a publication renews it."""
FUTURE_SECONDS = 24 * 3600.0
"""How far ahead the date of a list may be: clocks differ."""
PUT_BACK = (
    "%s is empty, and the key %s had revoked %d offer%s in it: the list was put back."
    " What other machines have revoked with this key since, they must revoke again."
)
log = logging.getLogger("opforge")


class Revocations(NamedTuple):
    """The entries whose offers by one key are revoked."""

    key: str
    """The key's name."""
    date: float
    """When the list was made; seconds since the epoch."""
    entries: tuple[str, ...] = ()
    digest: str = ""
    """Of the signed bytes; empty for a list that was not read."""

    @property
    def seen(self) -> Seen:
        """What is kept of it by those who have seen it: each change of a list gives it a later date."""
        return Seen(int(self.date), self.digest)

    def age_problem(self, days: float, now: float) -> str:
        """Returns why the list cannot be relied on now, or an empty text."""
        day = time.strftime(DATE, time.gmtime(self.date))
        if now - self.date > days * 24 * 3600:
            return f"the list of revoked offers of {self.key} was made {day}, more than {days:g} days ago"
        if self.date - now > FUTURE_SECONDS:
            return f"the list of revoked offers of {self.key} was made {day}, and this machine's clock is behind that"
        return ""


def name_of(key: str) -> str:
    """Returns the name of a key's list in a remote."""
    return f"v1/revoked/{key}.json"


def to_bytes(revocations: Revocations) -> bytes:
    """Returns the canonical bytes of a list, which are signed."""
    date = time.strftime(DATE, time.gmtime(revocations.date))
    value = {"kind": "revocations", "format": formats.WITHDRAWALS, "key": revocations.key, "date": date}
    return canonical({**value, "revoked": sorted(set(revocations.entries))})


def parse(data: bytes) -> Revocations:
    """Returns a list by its bytes, whose signature was verified before. Raises ValueError."""
    try:
        value = json.loads(data)
        entries = value["revoked"]
        if value["kind"] != "revocations" or value["format"] != formats.WITHDRAWALS:
            what = f"'kind' is {ascii(value['kind'])[:40]} and 'format' {ascii(value['format'])[:40]}"
            raise ValueError(f"{what}, expected 'revocations' and {formats.WITHDRAWALS}")
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise ValueError(f"'revoked' is {ascii(entries)[:100]}, expected a list of texts")
        # Not strptime, whose import takes longer than all of this.
        date = datetime.fromisoformat(value["date"].removesuffix("Z")).replace(tzinfo=timezone.utc).timestamp()
        if time.strftime(DATE, time.gmtime(date)) != value["date"]:
            raise ValueError(f"'date' is {value['date']!a}, expected one such as 2026-11-30T12:00:00Z")
        return Revocations(str(value["key"]), date, tuple(entries), bytes_digest(data))
    except UNREADABLE as error:
        raise ValueError(f"the list of revoked offers is damaged: {damage(error)}") from error


def fetch(store: ObjectStore, trusted: TrustedKey) -> Revocations | None:
    """Returns the list of a key in a remote, verified; None if there is none. Raises ValueError, StoreError."""
    stored = store.get(name_of(trusted.key.name), MAX_FRAME_BYTES)
    if stored is None:
        return None
    for item in read_frame(stored.data):
        if any(is_signed(item.data, signature, trusted.key) for signature in item.signatures):
            revocations = parse(item.data)
            if revocations.key == trusted.key.name:
                return revocations
    raise ValueError(f"the list of revoked offers of {trusted.key.name} is not signed by that key")


def publish(
    store: ObjectStore,
    signer: Signer,
    key: str,
    entries: Collection[str] = (),
    renew_after: float = RENEW_SECONDS,
    restore: bool = False,
) -> Revocations:
    """Adds entries to a key's list in a remote and gives it today's date; returns it.

    A list that has all of them and is newer than `renew_after` seconds is left as it is. The store may hand out an
    older list than this user's key has signed: it is refused, as today's date would make it pass for the newest; with
    `restore`, and in a store that is empty, what the newer one had revoked is put back.

    Raises PublishError, StoreError, ValueError if the list there is damaged.
    """
    now, newest = time.time(), own_lists.newest(key, store.url)
    for _attempt in topics.attempts():
        stored = store.get(name_of(key), MAX_FRAME_BYTES)
        before = Revocations(key, 0.0)
        if stored is not None:
            before = _own(store, signer, read_frame(stored.data))
        if before.date < newest.date or not newest.entries <= {*before.entries}:
            if not restore and not (stored is None and _is_empty(store)):
                raise _older(store, before, newest)
            if not restore and newest.entries:
                log.warning(PUT_BACK, store.url, key, len(newest.entries), "" if len(newest.entries) == 1 else "s")
            entries = {*entries, *newest.entries}
        own_lists.note(key, store.url, before.date, frozenset(before.entries))
        is_known = {*entries} <= {*before.entries}
        if is_known and now - before.date < renew_after:
            return before
        # Two lists must not have one date: those who fetch tell the newer one by it.
        revocations = Revocations(key, max(now, before.date + 1, newest.date + 1), (*before.entries, *entries))
        data = to_bytes(revocations)
        content = frame([Signed(data, (signer(data),))])
        if stored is None:
            is_stored = store.put_if_absent(name_of(key), content)
        else:
            is_stored = store.put_if_unchanged(name_of(key), content, stored.version)
        if is_stored:
            own_lists.note(key, store.url, float(int(revocations.date)), frozenset(revocations.entries))
            return revocations
    raise PublishError("the list of revoked offers", store.url, "others kept changing it", "Try again")


def _is_empty(store: ObjectStore) -> bool:
    """Returns whether a store holds no offer: its folder was made anew. One that cannot list is not known to be."""
    try:
        return next(iter(store.list(topics.FOLDER)), None) is None
    except StoreError:
        return False


def checked(entries: Collection[str]) -> list[str]:
    """Returns the names of entries. Raises SettingError for one that is no such name."""
    for entry in entries:
        if not ENTRY.fullmatch(entry):
            raise SettingError("ENTRY", entry, "the name of an entry, as opforge remote ls shows it")
    return list(entries)


def _older(store: ObjectStore, before: Revocations, newest: own_lists.Known) -> PublishError:
    """Returns the error for a list that is older than what this user knows of it."""
    there = (
        f"the one there was made {time.strftime(DATE, time.gmtime(before.date))}" if before.date else "there is none"
    )
    here = time.strftime(DATE, time.gmtime(newest.date))
    hint = "Who controls the store may hide what you have revoked. To put it back: opforge remote revoke URL"
    return PublishError("the list of revoked offers", store.url, f"{there}, and you know one of {here}", hint)


def _own(store: ObjectStore, signer: Signer, items: list[Signed]) -> Revocations:
    """Returns the list in a remote, if it is signed by the signer's key: its signatures are deterministic.

    Raises PublishError: to sign what another has put there could take back what was revoked.
    """
    if len(items) == 1 and signer(items[0].data) in items[0].signatures:
        return parse(items[0].data)
    hint = "Another key has its name, or the store was tampered with: remove the list, and revoke again"
    raise PublishError("the list of revoked offers", store.url, "the one there is not signed by this key", hint)
