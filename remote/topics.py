"""Topics: the names under which statements are found. A topic is one file of a store, changed by compare-and-swap.

    v1/topics/KIND/TOPIC.json

It holds the statements themselves, a line each, so that one request decides (ops):

    {"format":1,"items":[
    {"item":STATEMENT,"signatures":["ci:BASE64"]},
    {"item":STATEMENT,"signatures":["ci:BASE64","lab:BASE64"]}
    ]}

or it names them by their digests, each with a label (packages):

    {"format":1,"kind":"package","sequence":7,"statements":{"2.3":{"digest":"..."}},"topic":"acme/relu"}

The signed bytes are those of STATEMENT, no more and no less. Each line is split by its first and last words, so that no
part of a statement is parsed before its signature is verified. Both forms are valid JSON, for other readers.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from opforge.cache import schema
from opforge.cache.keys import canonical
from opforge.cache.schema import SHA256, TEXT, record, table, text, whole
from opforge.errors import PublishError, StoreError
from opforge.foundation import formats

from . import statements
from .statements import KIND, MAX_SIGNATURES, Signed
from .stores.protocol import ListedObject as StoredFile
from .stores.protocol import ObjectStore, is_name

FOLDER = "v1/topics/"
MAX_ITEMS, MAX_ITEM_BYTES, MAX_FRAME_BYTES = 256, 128 << 10, 4 << 20
MAX_LISTING_BYTES, MAX_LISTED = 16 << 20, 60_000
MAX_LABEL = 100
LABEL = text(f"[ -~]{{0,{MAX_LABEL}}}", f"at most {MAX_LABEL} printable characters")
LISTED = record({"digest": SHA256})
SCHEMA = record(
    {
        "format": schema.version(formats.TOPIC),
        "kind": KIND,
        "topic": TEXT,
        "sequence": whole(),
        # Nobody signs a label, and it is shown.
        "statements": table(
            LISTED, text(f"[ -~]{{0,{MAX_LABEL}}}", f"at most {MAX_LABEL} printable characters"), MAX_LISTED
        ),
    }
)
"""A topic that names its statements."""
DAMAGED = "Remove that file, and publish again"
FULL = "Remove old ones: opforge gc URL --unused-for AGE"
ATTEMPTS, FIRST_PAUSE, GROWTH, MAX_PAUSE = 40, 0.05, 1.5, 2.0
"""How often a file is written again after another publisher was quicker, and the pauses between, in seconds."""
_NAME = re.compile(r"v1/topics/([a-z][a-z0-9-]{0,31})/([A-Za-z0-9_-][A-Za-z0-9._/-]*)\.json")
_HEAD, _TAIL = b'{"format":%d,"items":[' % formats.TOPIC, b"]}"
_BEGIN, _MIDDLE = b'{"item":', b',"signatures":['
_SIGNATURE = rb'"[A-Za-z0-9._-]{1,63}:[A-Za-z0-9+/]{86}=="'
_SIGNATURES = re.compile(rb"(?:" + _SIGNATURE + rb"(?:," + _SIGNATURE + rb")*)?")


class ListedStatement(NamedTuple):
    """A statement that a topic names."""

    digest: str


class Listing(NamedTuple):
    """A topic that names its statements. `sequence` rises with each change: a lower one is older."""

    kind: str
    topic: str
    sequence: int = 0
    statements: Mapping[str, ListedStatement] = {}
    """By label."""

    def data(self) -> bytes:
        """Returns the content of the file. Raises ValueError if it would not be read again."""
        if len(self.statements) > MAX_LISTED:
            raise ValueError(f"it has {MAX_LISTED} statements already")
        listed = {label: entry._asdict() for label, entry in self.statements.items()}
        data = canonical({"format": formats.TOPIC, **self._asdict(), "statements": listed})
        if len(data) > MAX_LISTING_BYTES:
            raise ValueError(f"it would have {len(data)} bytes, more than {MAX_LISTING_BYTES}")
        read_listing(data, self.kind, self.topic)
        return data


ListingEdit = Callable[[Listing], Listing | None]
"""Returns a changed topic; None if nothing has to change."""


def name_of(kind: str, topic: str) -> str:
    """Returns the name of a topic's file in a store."""
    return f"{FOLDER}{kind}/{topic}.json"


def parse_name(name: str) -> tuple[str, str] | None:
    """Returns the kind and the topic of a file; None for a lock of a folder's publisher, or what is none of ours."""
    match = _NAME.fullmatch(name)
    return (match[1], match[2]) if match and is_name(name) else None


def attempts() -> Iterator[int]:
    """Yields the number of each attempt, after a pause from the second on.

    The pauses grow, and are random: publishers must not try again in step.
    """
    longest = FIRST_PAUSE
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(longest / 4, longest))  # noqa: S311 - no secret
            longest = min(MAX_PAUSE, longest * GROWTH)
        yield attempt


def edit(
    store: ObjectStore, name: str, limit: int, change: Callable[[bytes | None], bytes | None], what: str = ""
) -> bytes | None:
    """Changes a file of a store by compare-and-swap; returns what was written, or None if nothing had to change.

    `change` gets the file's bytes, None if there is none, and returns the new ones, or None. It is called again after
    another publisher was quicker. `limit` bounds the file's size. Raises PublishError if others keep changing it,
    StoreError, and what `change` raises.
    """
    for _attempt in attempts():
        stored = store.get(name, limit)
        data = change(stored.data if stored else None)
        if data is None:
            return None
        if store.put_if_unchanged(name, data, stored.version) if stored else store.put_if_absent(name, data):
            return data
    raise PublishError(what or name, store.url, f"others kept changing {name}", "Try again")


def read_items(store: ObjectStore, name: str, where: str) -> list[Signed]:
    """Returns the statements in a topic's file; none if there is no such file. Parses none of them.

    Raises StoreError, also if the file is damaged. `where` names the store in it.
    """
    stored = store.get(name, MAX_FRAME_BYTES)
    try:
        return [] if stored is None else read_frame(stored.data)
    except ValueError as error:
        raise StoreError(where, f"reading {name}", str(error), DAMAGED) from error


def edit_items(
    store: ObjectStore, name: str, change: Callable[[list[Signed]], list[Signed]], what: str, where: str
) -> bool:
    """Changes the statements in a topic's file by compare-and-swap; returns whether anything had to change.

    `change` returns the statements that there are to be. Raises PublishError if they are too many or others keep
    changing the file, StoreError, and ValueError if it is damaged.
    """

    def changed(stored: bytes | None) -> bytes | None:
        before = read_frame(stored) if stored is not None else []
        after = change(before)
        if len(after) > MAX_ITEMS and after != before:
            raise PublishError(what, where, f"{name} has {MAX_ITEMS} statements already", FULL)
        return None if after == before else frame(after)

    return edit(store, name, MAX_FRAME_BYTES, changed, what) is not None


def read_frame(data: bytes) -> list[Signed]:
    """Returns the items of a file that holds them. Does not parse the signed bytes.

    Raises ValueError for what `frame` would not write.
    """
    return [_signed(*parts) for parts in _lines(data)]


def signed_bytes(data: bytes) -> list[bytes]:
    """Returns the signed bytes in a file that holds items, as `read_frame` does, without their signatures."""
    return [item for item, _signatures in _lines(data)]


def _lines(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the signed bytes of each item, and the text of its signatures."""
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"it has {len(data)} bytes, and at most {MAX_FRAME_BYTES} are read")
    head, *lines = data.removesuffix(b"\n").split(b"\n", MAX_ITEMS + 3)
    if head != _HEAD:
        is_newer = re.fullmatch(rb'\{"format":[0-9]{1,9},"items":\[', head)
        begin = ascii(head.decode("utf-8", "replace"))[:100]
        if is_newer:
            raise ValueError(f"it begins with {begin}, a format that this opforge does not read: update opforge")
        raise ValueError(f"it is not a file of statements: it begins with {begin}, expected {_HEAD.decode()!r}")
    if not lines or lines[-1] != _TAIL:
        raise ValueError(f"it is cut short, or holds more than {MAX_ITEMS} statements")
    if len(lines) - 1 > MAX_ITEMS:
        raise ValueError(f"it holds more than {MAX_ITEMS} statements")
    for at, line in enumerate(lines[:-1]):
        line = line if at == len(lines) - 2 else line.removesuffix(b",")
        item, middle, rest = line.removesuffix(b"]}").rpartition(_MIDDLE)
        if not line.startswith(_BEGIN) or not line.endswith(b"]}") or not middle or not _SIGNATURES.fullmatch(rest):
            shown = ascii(line.decode("utf-8", "replace"))[:100]
            raise ValueError(f"a line in it is not a statement with signatures: {shown}")
        item = item[len(_BEGIN) :]
        if len(item) > MAX_ITEM_BYTES:
            raise ValueError(f"a statement in it has more than {MAX_ITEM_BYTES} bytes")
        yield item, rest


def _signed(data: bytes, rest: bytes) -> Signed:
    texts = [text.strip('"') for text in rest.decode("ascii").split(",") if text]
    if len(texts) > MAX_SIGNATURES:
        raise ValueError(f"a statement in it has more than {MAX_SIGNATURES} signatures")
    return Signed(data, statements.read_signatures(texts))


def frame(items: Sequence[Signed]) -> bytes:
    """Returns the file that holds these. Raises ValueError if it would not be read again."""
    lines = [
        _BEGIN + item.data + _MIDDLE + b",".join(f'"{signature}"'.encode() for signature in item.signatures) + b"]}"
        for item in items
    ]
    data = b"\n".join([_HEAD, *(line + b"," for line in lines[:-1]), *lines[-1:], _TAIL, b""])
    if len(items) > MAX_ITEMS or len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"it holds {len(items)} statements with {len(data)} bytes: at most {MAX_ITEMS} are read")
    if read_frame(data) != list(items):
        raise ValueError("it holds a statement that would be read as another one")
    return data


def is_frame(data: bytes) -> bool:
    """Returns whether a topic's file holds its statements; otherwise it names them."""
    return data.startswith(b'{"format":') and b',"items":[' in data[:32]


def read_listing(data: bytes, kind: str, topic: str) -> Listing:
    """Returns a topic that names its statements. Raises ValueError for another kind or topic, or a damaged file."""
    listing = any_listing(data)
    if (listing.kind, listing.topic) != (kind, topic):
        raise ValueError(f"it is the topic {listing.kind} {ascii(listing.topic)[:100]}, and not {kind} {topic}")
    return listing


def any_listing(data: bytes) -> Listing:
    """Returns the topic that names its statements in some bytes, whichever it is. Raises FormatError."""
    value = schema.parse(data, SCHEMA, MAX_LISTING_BYTES)
    listed = {label: ListedStatement(entry["digest"]) for label, entry in value["statements"].items()}
    return Listing(value["kind"], value["topic"], value["sequence"], listed)


def read_named(store: ObjectStore, kind: str, topic: str) -> Listing | None:
    """Returns a topic that names its statements; None if there is none. Raises StoreError, also if it is damaged."""
    stored = store.get(name_of(kind, topic), MAX_LISTING_BYTES)
    try:
        return None if stored is None else read_listing(stored.data, kind, topic)
    except ValueError as error:
        raise StoreError(store.url, f"reading {name_of(kind, topic)}", str(error), "Correct or remove it") from error


def edit_listing(store: ObjectStore, kind: str, topic: str, change: ListingEdit) -> Listing | None:
    """Changes a topic that names its statements by compare-and-swap; returns what was written, or None.

    Raises PublishError if others keep changing it, or it would not be read again; StoreError, ValueError if the one
    there cannot be read, and what `change` raises.
    """
    written: list[Listing] = []

    def changed(stored: bytes | None) -> bytes | None:
        before = Listing(kind, topic) if stored is None else read_listing(stored, kind, topic)
        after = change(before)
        if after is None:
            return None
        written[:] = [after._replace(sequence=after.sequence + 1)]
        try:
            return written[0].data()
        except ValueError as error:
            raise PublishError(topic, store.url, str(error), "Begin a new name") from error

    is_changed = edit(store, name_of(kind, topic), MAX_LISTING_BYTES, changed, topic) is not None
    return written[0] if is_changed else None


def needed_by(data: bytes, kind: str, topic: str) -> tuple[list[str], bool]:
    """Returns the names of the files that a topic in some bytes needs, and whether it holds its statements.

    These files are blobs, or the statements that it names. Signatures are not read. Raises ValueError, and
    UnreadableStatement for a statement in it.
    """
    if not is_frame(data):
        return [
            statements.name_of(entry.digest) for entry in read_listing(data, kind, topic).statements.values()
        ], False
    return [name for item in signed_bytes(data) for name in statements.blobs_in(item)], True


class Topic(NamedTuple):
    """A topic as a store holds it: its statements, or what names them."""

    kind: str
    topic: str
    file: StoredFile
    items: tuple[Signed, ...] = ()
    listing: Listing | None = None
    problem: str = ""
    """Why its file cannot be read; empty if it can."""


def read(data: bytes, kind: str, topic: str, file: StoredFile) -> Topic:
    """Returns the topic in a file, whichever form it has."""
    try:
        if is_frame(data):
            return Topic(kind, topic, file, tuple(read_frame(data)))
        return Topic(kind, topic, file, (), read_listing(data, kind, topic))
    except ValueError as error:
        return Topic(kind, topic, file, problem=str(error))


def in_store(store: ObjectStore, kind: str = "") -> Iterator[Topic]:
    """Yields the topics of a store, or those of a kind, as they are found. Raises StoreError.

    In a folder they are in the order of their names, for up to 1000 of them at a time.
    """
    files = dict[str, StoredFile]()

    def names() -> Iterator[str]:
        for file in store.list(f"{FOLDER}{kind}/" if kind else FOLDER):
            if parse_name(file.name):
                files[file.name] = file
                yield file.name

    for name, data in store.read_each(names(), MAX_LISTING_BYTES):
        yield read(data, *(parse_name(name) or ("", "")), files.pop(name))
