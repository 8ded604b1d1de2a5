"""Statements of a publisher about trees, as signed bytes. Kinds of artifacts differ in the facts alone.

    {"facts":{...},"kind":"op","opforge":"0.1.0","statement":1,"topic":"relu","trees":[{"blob":{...},"digest":"..."}]}

The list of trees stands outside of the facts: what is needed is known without knowing the kind. The signed bytes are
verified before any of them is parsed. A statement that has a file of its own is named by the SHA-256 of these bytes:

    v1/statements/sha256/XX/DIGEST     the bytes, a line feed, and a list of signatures such as ["ci:BASE64"]
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.keys import canonical
from opforge.cache.schema import SHA256, TEXT, FormatError, items, record, text, whole
from opforge.foundation import formats, opforge_version
from opforge.foundation.versions import version_of

from .blobs import MAX_BLOB_BYTES, MAX_UNPACKED_BYTES, Blob, Tree, name_of_blob
from .signatures import signing

OLDEST_OPFORGE = "0.1.0"
"""The oldest opforge that reads the facts that are written. An older one skips them, and says so."""
MAX_BYTES, MAX_TREES, MAX_SIGNATURES = 8 << 20, 1000, 8
MAX_FILE_BYTES = MAX_BYTES + (64 << 10)
"""Of a file: the statement and its signatures."""
SIGNATURES = items(TEXT, MAX_SIGNATURES)
FOLDER = "v1/statements/"
KIND = text(r"[a-z][a-z0-9-]{0,31}", "lower-case letters, digits and '-'")
TREE = record(
    {
        "digest": SHA256,
        "blob": record({"sha256": SHA256, "size": whole(1, MAX_BLOB_BYTES), "unpacked": whole(1, MAX_UNPACKED_BYTES)}),
    }
)
SCHEMA = record(
    {
        "statement": schema.version(formats.STATEMENT),
        "opforge": text(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}", "a version such as 0.1.0"),
        "kind": KIND,
        "topic": TEXT,
        "trees": items(TREE, MAX_TREES),
        "facts": schema.OBJECT,
    }
)


class Signed(NamedTuple):
    """Bytes with the signatures beside them, as a file of a store holds them."""

    data: bytes
    signatures: tuple[signing.Named, ...] = ()

    @property
    def digest(self) -> str:
        """The SHA-256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def signers(self) -> set[str]:
        """The names of the keys of the signatures."""
        return {signature.name for signature in self.signatures}

    def file(self) -> bytes:
        """Returns the content of the file of its own in a store."""
        return self.data + b"\n" + json.dumps([str(signature) for signature in self.signatures]).encode() + b"\n"


class Statement(NamedTuple):
    """A publisher's statement about trees."""

    kind: str
    topic: str
    trees: tuple[Tree, ...]
    facts: Mapping[str, Any]
    opforge: str = OLDEST_OPFORGE
    """The oldest opforge that reads the facts."""

    def data(self, limit: int = MAX_BYTES) -> bytes:
        """Returns the canonical bytes, which are signed. Raises ValueError if they are more than `limit`."""
        trees = [{"digest": tree.digest, "blob": tree.blob._asdict()} for tree in self.trees]
        data = canonical({"statement": formats.STATEMENT, **self._asdict(), "trees": trees})
        if len(data) > limit:
            raise ValueError(f"its statement has {len(data)} bytes, and at most {limit} are read")
        return data


_BEGIN, _LAST_FIELDS = b'{"facts":{', b',"statement":%d,"topic":"' % formats.STATEMENT
_TREE = rb'\{"blob":\{"sha256":"[0-9a-f]{64}","size":[0-9]+,"unpacked":[0-9]+\},"digest":"[0-9a-f]{64}"\}'
_SHA256 = rb'"sha256":"([0-9a-f]{64})"'


class UnreadableStatement(FormatError):
    """A statement cannot be used; the text says why."""


def parse(data: bytes) -> Statement:
    """Returns the statement of any kind in some bytes, also one whose facts only a newer opforge reads.

    Raises UnreadableStatement.
    """
    try:
        value = schema.parse(data, SCHEMA, MAX_BYTES)
    except FormatError as error:
        raise UnreadableStatement(str(error)) from error
    if canonical(value) != data:
        raise UnreadableStatement("it is not in the canonical form")
    trees = tuple(Tree(tree["digest"], Blob(**tree["blob"])) for tree in value["trees"])
    return Statement(value["kind"], value["topic"], trees, value["facts"], value["opforge"])


@cache
def _end() -> tuple[Callable[[bytes, int], re.Match[bytes] | None], Callable[[bytes], list[bytes]]]:
    """Returns the matcher of a statement's end, and the function that finds the blobs' digests in its list of trees."""
    # Not compiled by a fetch, which parses what it uses.
    end = re.compile(_LAST_FIELDS + rb'(?:[^"\\]|\\.)*","trees":\[((?:' + _TREE + rb"(?:," + _TREE + rb")*)?)\]\}")
    return end.fullmatch, re.compile(_SHA256).findall


def blobs_in(data: bytes) -> list[str]:
    """Returns the names of the blobs that a statement of any kind needs. Raises UnreadableStatement.

    The list of trees ends a statement in its canonical form, so that the facts need not be parsed. The end is what a
    reader would find if the fields before the list stand in the bytes once: they are not those of another statement.
    """
    at = max(0, data.rfind(_LAST_FIELDS))
    end, digests = _end()
    trees = end(data, at)
    if trees is None or not data.startswith(_BEGIN) or data.find(_LAST_FIELDS) != at:
        return [tree.blob.name for tree in parse(data).trees]
    return [name_of_blob(digest.decode()) for digest in digests(trees[1])]


def parse_as(data: bytes, kind: str, topic: str = "") -> Statement:
    """Returns the statement in some bytes, whose signature was verified before, if its facts are read here.

    Raises UnreadableStatement, also for another kind, or another topic than `topic`, unless that is empty.
    """
    return readable(parse(data), kind, topic)


def readable(statement: Statement, kind: str, topic: str = "") -> Statement:
    """Returns a statement whose facts are read here. Raises UnreadableStatement, as `parse_as` does."""
    if statement.kind != kind:
        raise UnreadableStatement(f"it is a statement of the kind {statement.kind!r}, and not {kind!r}")
    if version_of(opforge_version.VERSION) < version_of(statement.opforge):
        needed = f"it needs opforge {statement.opforge} or newer"
        raise UnreadableStatement(f"{needed}, and this is opforge {opforge_version.VERSION}")
    if topic and statement.topic != topic:
        raise UnreadableStatement(f"it was made for another topic: {statement.topic[:100]!r}, expected {topic!r}")
    return statement


def facts_of(stated: Statement, declared: schema.Schema) -> Mapping[str, Any]:
    """Returns the facts of a statement. Raises UnreadableStatement if they are not as declared."""
    try:
        schema.checked(stated.facts, declared)
    except FormatError as error:
        raise UnreadableStatement(f"in its facts {error}") from error
    return stated.facts


def only_tree(stated: Statement, what: str, most: int = MAX_UNPACKED_BYTES) -> Tree:
    """Returns the one tree of a statement. Raises UnreadableStatement for more or none, or more bytes than `most`."""
    if len(stated.trees) != 1:
        raise UnreadableStatement(f"'trees' is a list of {len(stated.trees)} items: expected 1, {what}")
    tree = stated.trees[0]
    if tree.blob.unpacked > most:
        raise UnreadableStatement(f"it unpacks to {tree.blob.unpacked} bytes, and at most {most} are read")
    return tree


def name_of(digest: str) -> str:
    """Returns the name of a statement's own file in a store."""
    return f"{FOLDER}sha256/{digest[:2]}/{digest}"


def read_file(content: bytes, digest: str) -> Signed:
    """Returns the signed bytes in a statement's own file. Nothing of them is parsed. Raises UnreadableStatement."""
    _bytes_of(content, digest)
    return split_file(content)


def split_file(content: bytes) -> Signed:
    """Returns the signed bytes in a file that holds some with their signatures. Raises UnreadableStatement."""
    data, _newline, rest = content.partition(b"\n")
    try:
        return Signed(data, read_signatures(schema.parse(rest, SIGNATURES)))
    except ValueError as error:
        raise UnreadableStatement(f"its signatures cannot be read ({error})") from error


def blobs_in_file(content: bytes, digest: str) -> list[str]:
    """Returns the names of the blobs that a statement's own file needs. Raises UnreadableStatement."""
    return blobs_in(_bytes_of(content, digest))


def _bytes_of(content: bytes, digest: str) -> bytes:
    data, newline, _rest = content.partition(b"\n")
    if not newline or hashlib.sha256(data).hexdigest() != digest:
        raise UnreadableStatement("its bytes are not those that its topic names")
    return data


def read_signatures(texts: Sequence[str]) -> tuple[signing.Named, ...]:
    """Returns the signatures in a list of texts. Raises ValueError."""
    return tuple(signing.parse(text, signing.SIGNATURE_BYTES) for text in texts)


def signed(statement: Statement, signers: Sequence[Any], limit: int = MAX_BYTES) -> Signed:
    """Returns a statement's bytes, signed by each signer. Raises ValueError if they are more than `limit`."""
    data = statement.data(limit)
    return Signed(data, tuple(signer(data) for signer in signers))
