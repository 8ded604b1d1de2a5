"""Offers: what a store says of one entry, and the file that holds all offers of a description.

    {"format":1,"items":[
    {"item":OFFER,"signatures":["ci:BASE64"]},
    {"item":OFFER,"signatures":["ci:BASE64","lab:BASE64"]}
    ]}

The signed bytes are those of OFFER, no more and no less. Each line is split by its first and last words, so that
no part of an offer is parsed before its signature is verified. The whole is also valid JSON, for other readers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import opforge
from opforge.cache.filesystem.files import UNREADABLE
from opforge.cache.keys import canonical
from opforge.cache.layout import entry_name
from opforge.cache.records.entry import is_intact, is_record
from opforge.cache.records.inputs import Inputs
from opforge.versions import version_of

from .signatures import signing

FORMAT = 1
"""The format of the offers that are written."""
READ_FORMATS = range(1, FORMAT + 1)
"""The formats of offers that are read."""
OLDEST_OPFORGE = "0.1.0"
"""The oldest opforge that reads the offers that are written. An older one skips them, and says so."""
FRAME_FORMAT = 1
MAX_OFFERS, MAX_SIGNATURES = 256, 8
MAX_OFFER_BYTES, MAX_FRAME_BYTES = 128 << 10, 4 << 20
MAX_BLOB_BYTES, MAX_UNPACKED_BYTES = 2 << 30, 4 << 30
_HEAD, _TAIL = b'{"format":%d,"items":[' % FRAME_FORMAT, b"]}"
_BEGIN, _MIDDLE = b'{"item":', b',"signatures":['
_SIGNATURE = rb'"[A-Za-z0-9._-]{1,63}:[A-Za-z0-9+/]{86}=="'
_SIGNATURES = re.compile(rb"(?:" + _SIGNATURE + rb"(?:," + _SIGNATURE + rb")*)?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[0-9a-f]{32}")


class Signed(NamedTuple):
    """Bytes with the signatures beside them, as a file of a remote holds them."""

    data: bytes
    signatures: tuple[signing.Named, ...] = ()


class Blob(NamedTuple):
    """What an offer says of its blob."""

    sha256: str
    size: int
    """Bytes of the packed blob."""
    unpacked: int
    """Bytes of what it unpacks to."""

    @property
    def name(self) -> str:
        """Its name in a store."""
        return f"v1/blobs/sha256/{self.sha256[:2]}/{self.sha256}"


class Offer(NamedTuple):
    """What a store says of one entry."""

    record: Mapping[str, Any]
    blob: Blob

    @property
    def entry(self) -> str:
        """The name of the entry."""
        return entry_name(self.record["key"], self.record["sha256"])


class UnreadableOffer(ValueError):
    """An offer was signed by a trusted key, and cannot be used; the text says why."""


def name_of(description: str) -> str:
    """Returns the name of the file that holds the offers of a description."""
    return f"v1/offers/{description}.json"


def offer_bytes(record: Mapping[str, Any], description: str, blob: Blob) -> bytes:
    """Returns the canonical bytes of an offer, which are signed. Raises ValueError if they are too many."""
    value = {
        "kind": "offer",
        "format": FORMAT,
        "opforge": OLDEST_OPFORGE,
        "description": description,
        "record": record,
        "blob": blob._asdict(),
    }
    data = canonical(value)
    if len(data) > MAX_OFFER_BYTES:
        raise ValueError(f"its offer has {len(data)} bytes, and at most {MAX_OFFER_BYTES} are read")
    return data


def parse(data: bytes, description: str = "") -> Offer:
    """Returns an offer by its bytes, whose signature was verified before.

    Raises UnreadableOffer, also if it was made for another description than `description`, unless that is empty.
    """
    try:
        return _parse(data, description)
    except UnreadableOffer:
        raise
    except UNREADABLE as error:
        raise UnreadableOffer(f"it is damaged ({type(error).__name__}: {error})") from error


def _parse(data: bytes, description: str) -> Offer:
    value = json.loads(data)
    if value["kind"] != "offer":
        raise UnreadableOffer(f"it is a signed {value['kind']!r}, and no offer")
    oldest = str(value["opforge"])
    if version_of(opforge.__version__) < version_of(oldest):
        raise UnreadableOffer(f"it needs opforge {oldest} or newer, and this is opforge {opforge.__version__}")
    if value["format"] not in READ_FORMATS:
        raise UnreadableOffer(f"its format {value['format']!r} is not read by this opforge")
    if description and value["description"] != description:
        raise UnreadableOffer(
            f"it was made for another description: {_shown(value['description'])}, expected {description}"
        )
    if canonical(value) != data:
        raise UnreadableOffer("it is not in the canonical form")
    record, blob = value["record"], Blob(**value["blob"])
    if not is_record(record) or not is_intact(record) or not record["op"].isidentifier():
        raise UnreadableOffer("its record is incomplete or damaged, or of a format that is not read")
    for name in ("plan", "description", "key"):
        if not _KEY.fullmatch(record[name]):
            raise UnreadableOffer(f"{name!r} of its record is {_shown(record[name])}, expected 32 hex digits")
    for owner, digest in (("record", record["sha256"]), ("blob", blob.sha256)):
        if not _DIGEST.fullmatch(digest):
            raise UnreadableOffer(f"'sha256' of its {owner} is {_shown(digest)}, expected 64 hex digits")
    limits = (("size", "record", record["size"], blob.unpacked), ("size", "blob", blob.size, MAX_BLOB_BYTES))
    for name, owner, size, most in (("unpacked", "blob", blob.unpacked, MAX_UNPACKED_BYTES), *limits):
        if type(size) is not int or not 0 < size <= most:
            raise UnreadableOffer(f"{name!r} of its {owner} is {_shown(size)}, expected a number of bytes up to {most}")
    Inputs.from_json(record["inputs"])
    return Offer(record, blob)


def _shown(value: object) -> str:
    return ascii(value)[:100]


def read_frame(data: bytes) -> list[Signed]:
    """Returns what a file of offers, or of one list of revoked offers, holds. Does not parse the signed bytes.

    Raises ValueError for what `frame` would not write.
    """
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"it has {len(data)} bytes, and at most {MAX_FRAME_BYTES} are read")
    head, *lines = data.removesuffix(b"\n").split(b"\n", MAX_OFFERS + 3)
    if head != _HEAD:
        is_newer = re.fullmatch(rb'\{"format":[0-9]{1,9},"items":\[', head)
        begin = _shown(head.decode("utf-8", "replace"))
        if is_newer:
            raise ValueError(f"it begins with {begin}, a format that this opforge does not read")
        raise ValueError(f"it is no file of offers: it begins with {begin}, expected {_HEAD.decode()!r}")
    if not lines or lines[-1] != _TAIL:
        raise ValueError(f"it is cut short, or holds more than {MAX_OFFERS} offers")
    if len(lines) - 1 > MAX_OFFERS:
        raise ValueError(f"it holds more than {MAX_OFFERS} offers")
    return [_signed(line, is_last=at == len(lines) - 2) for at, line in enumerate(lines[:-1])]


def _signed(line: bytes, is_last: bool) -> Signed:
    line = line if is_last else line.removesuffix(b",")
    data, middle, rest = line.removesuffix(b"]}").rpartition(_MIDDLE)
    if not line.startswith(_BEGIN) or not line.endswith(b"]}") or not middle or not _SIGNATURES.fullmatch(rest):
        raise ValueError(f"a line in it is no offer with signatures: {_shown(line)}, expected {_BEGIN!r} and so on")
    data = data[len(_BEGIN) :]
    if len(data) > MAX_OFFER_BYTES:
        raise ValueError(f"an offer in it has more than {MAX_OFFER_BYTES} bytes")
    texts = [text.strip('"') for text in rest.decode("ascii").split(",") if text]
    if len(texts) > MAX_SIGNATURES:
        raise ValueError(f"an offer in it has more than {MAX_SIGNATURES} signatures")
    return Signed(data, tuple(signing.parse(text, signing.SIGNATURE_BYTES) for text in texts))


def frame(items: Sequence[Signed]) -> bytes:
    """Returns the file that holds these. Raises ValueError if it would not be read again."""
    lines = [
        _BEGIN + item.data + _MIDDLE + b",".join(f'"{signature}"'.encode() for signature in item.signatures) + b"]}"
        for item in items
    ]
    data = b"\n".join([_HEAD, *(line + b"," for line in lines[:-1]), *lines[-1:], _TAIL, b""])
    if len(items) > MAX_OFFERS or len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"it holds {len(items)} offers with {len(data)} bytes, and that is too much")
    return data
