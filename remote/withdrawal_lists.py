"""Each key's list in a store, signed by that key: its valid releases, and its withdrawn artifacts of any kind.

A withdrawn artifact is refused in `accepted_statements.py`, whenever its statement is judged. `reverification.py`
removes one that was fetched before. An installed package is not loaded: see `packages/installed/releases.py`.

    v1/withdrawals/NAME.json     NAME is the key's: the list, a line feed, and a list of signatures

    {"date":DATE,"format":2,"id":"5f0c...","key":"ci","kind":"withdrawals",
     "released":{"package:acme/relu":{"2.3":DIGEST}},
     "withdrawn":{"package:acme/relu@2.3":{"date":DATE,"reason":"wrong for empty tensors","stops":"choosing"}}}

`number` is there too if the date alone does not say which of two lists is newer: after one that was made by a clock
that was ahead, the next has a date of today and a higher number. `id` is a digest of the URL to which the key has
published it: a copy of the store has the same one, and another store, to which the key publishes too, has not.

What a list names is the one thing that says which releases there are: the index beside it is unsigned, and a cache.

Withdrawing has two strengths. What is not *chosen* any more stays in use where it is; what is not *loaded* any more is
refused everywhere. What is taken back stays in the list, so that an older list never passes for the newest. Another key
cannot withdraw what a key has signed, and cannot vouch that nothing was withdrawn.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from opforge.cache import schema
from opforge.cache.keys import bytes_digest, canonical, key_of
from opforge.cache.schema import SHA256, TEXT, choice, record, table, text, whole
from opforge.errors import PublishError, StoreError
from opforge.errors.base import printable
from opforge.foundation import environment, formats
from opforge.foundation.files import make_folder, read_file, write_file

from . import clocks, statements, topics
from .signatures.keys import Signer
from .signatures.seen import Seen
from .signatures.signing import is_signed
from .signatures.trust_file import TrustedKey
from .statements import Signed
from .stores.protocol import ObjectStore, StoredObject
from .stores.urls import resolved, spelled

FOLDER = "v1/withdrawals/"
CHOOSING, LOADING, NOTHING = "choosing", "loading", "nothing"
"""The effects of a withdrawal; "nothing" after it was taken back."""
STRENGTHS = (CHOOSING, LOADING, NOTHING)
MAX_BYTES, MAX_REASON, MAX_NAME = 8 << 20, 500, 400
DATE = "%Y-%m-%dT%H:%M:%SZ"
RENEW_SECONDS = 24 * 3600.0
"""How old a list is before a publication renews it."""
FUTURE_SECONDS = 24 * 3600.0
"""How far ahead the date of a list may be: clocks differ."""
QUICK_SECONDS = 60
"""How far ahead the date of a list may be because the one before was made a moment ago."""
AHEAD_SECONDS = 3600.0
"""How far ahead the date of a list may be that is left as it is by its own publisher."""
WHAT = "the list of withdrawals"
PUT_BACK = (
    "%s is empty, and the key %s had withdrawn %d statement%s in it: the list was put back."
    " What other machines have withdrawn with this key since, they must withdraw again."
)
SCHEMA = record(
    {
        "kind": choice("withdrawals"),
        "format": schema.version(formats.WITHDRAWALS),
        "key": TEXT,
        "id": text("[0-9a-f]{16}", "16 hex digits"),
        "date": TEXT,
        "released": table(table(SHA256, text(most=MAX_NAME)), text(most=MAX_NAME)),
        "withdrawn": table(
            record({"stops": choice(*STRENGTHS), "reason": text(most=MAX_REASON), "date": TEXT}), text(most=MAX_NAME)
        ),
    },
    optional={"number": whole(1)},
)
log = logging.getLogger("opforge")


Released = Mapping[str, Mapping[str, str]]
"""The digests of statements, by KIND:TOPIC, as package:acme/relu, and by their labels in canonical form."""


class Withdrawal(NamedTuple):
    """The last word of a key about one of its statements."""

    stops: str
    """CHOOSING, LOADING or NOTHING."""
    reason: str = ""
    date: float = 0.0
    """When that was said; seconds since the epoch."""


class Withdrawals(NamedTuple):
    """The list of a key. Statements are named by their kind and by `Kind.title`: op:ENTRY, package:acme/relu@2.3."""

    key: str
    """The key's name."""
    date: float
    """When the list was made; seconds since the epoch."""
    withdrawn: Mapping[str, Withdrawal] = MappingProxyType({})
    digest: str = ""
    """Of the signed bytes; empty for a list that was not read."""
    number: int = 0
    """It rises with each change; 0 if the date does."""
    id: str = "0" * 16
    """A digest of the URL to which it was published; zeros for one that is not there yet."""
    released: Released = MappingProxyType({})

    @property
    def order(self) -> int:
        """A number that is higher in a newer list."""
        return self.number or int(self.date)

    @property
    def seen(self) -> Seen:
        """The record that readers of the list keep."""
        return Seen(self.order, self.digest)

    def of(self, name: str) -> Withdrawal:
        """Returns the withdrawal of a statement; one that stops nothing if it is not withdrawn."""
        return self.withdrawn.get(name, Withdrawal(NOTHING))

    def released_as(self, name: str) -> str:
        """Returns the digest of a release, as package:acme/relu@2.3; empty if it is not named."""
        subject, _at, label = name.rpartition("@")
        return self.released.get(subject, {}).get(label, "")

    def names(self, released: Released) -> bool:
        """Returns whether it names all of these."""
        mine = self.released
        return all({*labels.items()} <= {*mine.get(subject, {}).items()} for subject, labels in released.items())

    def lacks(self, other: Withdrawals) -> bool:
        """Returns whether it does not know all that another list of the key says."""
        mine = self.withdrawn
        is_behind = any(name not in mine or mine[name].date < said.date for name, said in other.withdrawn.items())
        return is_behind or not self.names(other.released)

    def merged(self, other: Withdrawals) -> Withdrawals:
        """Returns the list with all that either says, the later of two."""
        both = {**self.withdrawn}
        both |= {name: said for name, said in other.withdrawn.items() if self.of(name).date <= said.date}
        newer = max(self, other, key=lambda listed: listed.order)
        return newer._replace(withdrawn=both, released=_joined(other.released, self.released), digest="")

    def age_problem(self, days: float, now: float) -> str:
        """Returns why the list cannot be relied on now, or an empty text. Without `days` it may be of any age."""
        day = _day(self.date)
        if days and now - self.date > days * 24 * 3600:
            return f"{WHAT} of {self.key} was made {day}, more than {days:g} days ago"
        if self.date - now > FUTURE_SECONDS:
            return f"{WHAT} of {self.key} was made {day}, and this machine's clock says {_day(now)}"
        return ""


def _joined(one: Released, other: Released) -> Released:
    """Returns the releases of both. Where they name a label differently that of the other counts."""
    return {subject: {**one.get(subject, {}), **other.get(subject, {})} for subject in {**one, **other}}


def name_of(key: str) -> str:
    """Returns the name of a key's list in a store."""
    return f"{FOLDER}{key}.json"


def _day(date: float) -> str:
    return time.strftime(DATE, time.gmtime(date))


class FullListError(ValueError):
    """A list would have more bytes than are read."""


def to_bytes(listed: Withdrawals) -> bytes:
    """Returns the canonical bytes of a list, which are signed.

    Raises ValueError if they would not be read again, FullListError if they are too many.
    """
    for said in listed.withdrawn.values():
        check_reason(said.reason)
    withdrawn = {name: {**said._asdict(), "date": _day(said.date)} for name, said in listed.withdrawn.items()}
    value = {"kind": "withdrawals", "format": formats.WITHDRAWALS, "key": listed.key, "date": _day(listed.date)}
    number = {"number": listed.number} if listed.number else {}
    released = {subject: dict(labels) for subject, labels in listed.released.items()}
    data = canonical({**value, **number, "id": listed.id, "released": released, "withdrawn": withdrawn})
    if len(data) > MAX_BYTES // 2:
        raise FullListError(f"it would have {len(data)} bytes, more than {MAX_BYTES // 2}")
    parse(data)
    return data


def check_reason(reason: str) -> None:
    """Raises ValueError for a reason that cannot be shown in a line."""
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise ValueError(f"the reason is {ascii(reason)[:60]}: expected one line of at most {MAX_REASON} characters")


def parse(data: bytes) -> Withdrawals:
    """Returns a list by its bytes, whose signature was verified before. Raises ValueError."""
    try:
        value = schema.parse(data, SCHEMA, MAX_BYTES)
        withdrawn = {
            name: Withdrawal(said["stops"], printable(said["reason"]), _date(said["date"]))
            for name, said in value["withdrawn"].items()
        }
        date, number = _date(value["date"]), value.get("number", 0)
        return Withdrawals(value["key"], date, withdrawn, bytes_digest(data), number, value["id"], value["released"])
    except ValueError as error:
        raise ValueError(f"{WHAT} is damaged: {error}") from error


def _date(text: str) -> float:
    # Not strptime, whose import takes longer than all of this.
    date = datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp()
    if _day(date) != text:
        raise ValueError(f"'date' is {text!a}, expected one such as 2026-11-30T12:00:00Z")
    return date


def signed(content: bytes) -> Signed:
    """Returns the signed bytes in the file of a list. Nothing of them is parsed. Raises ValueError."""
    try:
        return statements.split_file(content)
    except ValueError as error:
        raise ValueError(f"{WHAT} is damaged: {error}") from error


def verified(content: bytes, trusted: TrustedKey) -> Withdrawals:
    """Returns the list of a key in a file. Raises ValueError if it is not signed by that key, or damaged."""
    item = signed(content)
    if any(is_signed(item.data, signature, trusted.key) for signature in item.signatures):
        listed = parse(item.data)
        if listed.key == trusted.key.name:
            return listed
    raise ValueError(f"{WHAT} of {trusted.key.name} is not signed by that key")


class Unverified:
    """The lists of a store by their keys, for listings: nothing is verified, and what is damaged says nothing."""

    def __init__(self, store: ObjectStore) -> None:
        """Begins without a list."""
        self._store, self._read = store, dict[str, Withdrawals]()

    def of(self, key: str) -> Withdrawals:
        """Returns the list of a key. Raises StoreError."""
        if key not in self._read:
            stored = self._store.get(name_of(key), MAX_BYTES)
            try:
                self._read[key] = parse(signed(stored.data).data) if stored else Withdrawals(key, 0.0)
            except ValueError:
                self._read[key] = Withdrawals(key, 0.0)
        return self._read[key]


def publish(
    store: ObjectStore,
    signer: Signer,
    key: str,
    said: Mapping[str, Withdrawal] = MappingProxyType({}),
    renew_after: float = RENEW_SECONDS,
    restore: bool = False,
    released: Released = MappingProxyType({}),
) -> Withdrawals:
    """Adds to a key's list in a store and gives it today's date; returns it.

    A list that says all of it and is newer than `renew_after` seconds is left as it is. The store may hand out an
    older list than this user's key has signed: it is refused, as today's date would make it pass for the newest; with
    `restore`, and in a store that is empty, what the newer one says is put back.

    Raises PublishError, also for a release that the list names by another digest, and for a list that is damaged or
    full; StoreError, SignatureError, ValueError for a reason that cannot be shown.
    """
    for _attempt in topics.attempts():
        stored, before, newest = _read(store, signer, key, restore)
        _note(before, store.url)
        is_known = all(before.of(name)[:2] == one[:2] for name, one in said.items()) and before.names(released)
        is_known = is_known and not before.lacks(newest)
        if is_known and -AHEAD_SECONDS < time.time() - before.date < renew_after:
            return before
        made = _made(before.merged(newest), said, released)._replace(id=_place(store))
        if not made.names(released):
            raise _renamed(store, made, released)
        clocks.require_right(store, made.date)
        try:
            content = file_of(made, signer)
        except FullListError as error:
            raise _full(store, key, error) from error
        if (
            store.put_if_unchanged(name_of(key), content, stored.version)
            if stored
            else store.put_if_absent(name_of(key), content)
        ):
            _note(made, store.url)
            return made
    raise PublishError(WHAT, store.url, "others kept changing it", "Try again")


def own(store: ObjectStore, signer: Signer, key: str, restore: bool = False) -> Withdrawals:
    """Returns a key's list in a store, merged with this user's record of it, before an artifact is published.

    Raises PublishError for a list that is damaged or, unless `restore`, older than what this user's key has signed;
    StoreError.
    """
    _stored, before, newest = _read(store, signer, key, restore)
    return before.merged(newest)


def require_room(store: ObjectStore, listed: Withdrawals, released: Released) -> None:
    """Raises PublishError if a list has no room for further releases: before anything of them is written."""
    try:
        to_bytes(_made(listed, {}, released))
    except FullListError as error:
        raise _full(store, listed.key, error) from error


def _full(store: ObjectStore, key: str, error: FullListError) -> PublishError:
    # It never gets shorter: an older list must not pass for the newest.
    hint = "Go on with another key (opforge key new NAME), which has a list of its own, or in another store"
    return PublishError(f"{WHAT} of {key}", store.url, str(error), hint)


def _read(
    store: ObjectStore, signer: Signer, key: str, restore: bool
) -> tuple[StoredObject | None, Withdrawals, Withdrawals]:
    """Returns the file of a key's list, what it says, and the newest that this user knows of it."""
    newest, stored = _known(key, store.url), store.get(name_of(key), MAX_BYTES)
    before = _own(store, signer, stored.data) if stored else Withdrawals(key, 0.0)
    if not restore and (before.order < newest.order or before.lacks(newest)):
        if stored is not None or not _is_empty(store):
            raise _older(store, before, newest)
        if newest.withdrawn:
            count = len(newest.withdrawn)
            log.warning(PUT_BACK, store.url, key, count, "" if count == 1 else "s")
    return stored, before, newest


def _renamed(store: ObjectStore, listed: Withdrawals, released: Released) -> PublishError:
    """Returns the error for a release that a list names already, with other files."""
    names = {f"{subject}@{label}": digest for subject, labels in released.items() for label, digest in labels.items()}
    name = next(name for name, digest in names.items() if listed.released_as(name) != digest)
    reason = f"the list of the key {listed.key} names it with other files"
    return PublishError(name.partition(":")[2], store.url, reason, "A version never changes: raise it")


def _made(before: Withdrawals, said: Mapping[str, Withdrawal], released: Released) -> Withdrawals:
    """Returns a list of today that says more, and is newer: readers tell that by its order."""
    date, number = float(int(time.time())), 0
    if before.order >= date + QUICK_SECONDS:  # it was made by a clock that was ahead: the way back
        number = before.order + 1
    elif before.order >= date:
        date = float(before.order + 1)
    new = {
        name: one._replace(date=max(date, before.of(name).date + 1))  # the last word on it
        for name, one in said.items()
        if before.of(name)[:2] != one[:2]
    }
    return before._replace(
        date=date,
        number=number,
        withdrawn={**before.withdrawn, **new},
        released=_joined(released, before.released),
        digest="",
    )


def file_of(listed: Withdrawals, signer: Signer) -> bytes:
    """Returns the content of a list's file. Raises ValueError if it would not be read again."""
    data = to_bytes(listed)
    return Signed(data, (signer(data),)).file()


def _place(store: ObjectStore) -> str:
    return key_of([spelled(resolved(store.url))])[:16]


def _is_empty(store: ObjectStore) -> bool:
    """Returns whether a store holds no statement: its folder was made anew. One that cannot list is not known to be."""
    try:
        return next(iter(store.list(topics.FOLDER)), None) is None
    except StoreError:
        return False


def _older(store: ObjectStore, before: Withdrawals, newest: Withdrawals) -> PublishError:
    """Returns the error for a list that is older than what this user knows of it."""
    there = f"the one there was made {_day(before.date)}" if before.date else "the store has no list"
    hint = "Whoever controls the store may hide your withdrawals. To put it back: opforge withdraw URL"
    return PublishError(WHAT, store.url, f"{there}, and you know one of {_day(newest.date)}", hint)


def _own(store: ObjectStore, signer: Signer, content: bytes) -> Withdrawals:
    """Returns the list in a file, if it is signed by the signer's key: its signatures are deterministic.

    Raises PublishError if it is damaged, or another's: to sign that could take back what was withdrawn.
    """
    try:
        item = signed(content)
        if len(item.signatures) == 1 and signer(item.data) == item.signatures[0]:
            return parse(item.data)
    except ValueError as error:
        hint = f"Remove {name_of(signer(b'').name)}, and publish again"
        raise PublishError(WHAT, store.url, str(error).removeprefix(f"{WHAT} is "), hint) from error
    hint = "Another key has its name, or the store was tampered with: remove the list, and withdraw again"
    raise PublishError(WHAT, store.url, "the one there is not signed by this key", hint)


def _path(key: str, place: str) -> str:
    """Returns the file with the newest list of a key in a store that this user has signed or seen: no cache."""
    return os.path.join(environment.state_dir(), "withdrawals", f"{key}-{key_of([resolved(place)])[:16]}.json")


def _known(key: str, place: str) -> Withdrawals:
    try:
        return parse(read_file(_path(key, place), MAX_BYTES))
    except (OSError, ValueError):
        return Withdrawals(key, 0.0)


def _note(listed: Withdrawals, place: str) -> None:
    """Keeps a list that was signed or seen, unless a newer one is known. A folder that is read-only keeps nothing."""
    path, before = _path(listed.key, place), _known(listed.key, place)
    if not listed.date or before.order >= listed.order:
        return
    try:
        make_folder(os.path.dirname(path))
        write_file(path, to_bytes(listed))
    except OSError:
        return  # in CI, where the key is a variable and nothing is kept between two jobs
