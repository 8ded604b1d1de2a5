"""A release: a name, a version and its variants, as one signed file that never changes.

    {"name":"acme/relu","version":"2.3","variants":[...],...}
    ["ci:BASE64"]

The signed bytes are those of the first line, and their SHA-256 is the release's name in a store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opforge.errors import KernelFormatError
from opforge.packages.choose import candidate
from opforge.packages.choose.candidate import Candidate
from opforge.packages.form import names, version
from opforge.packages.form.json_text import Fields, canonical, is_sha256, parse_object
from opforge.packages.form.version import Version
from opforge.remote.offers import Blob as Blob
from opforge.remote.signatures import signing

FORMAT = 1
MAX_BYTES, MAX_VARIANTS, MAX_SIGNATURES = 8 << 20, 1000, 8
MAX_BLOB_BYTES, MAX_UNPACKED_BYTES = 2 << 30, 4 << 30
EXPECTED = "a release as opforge publish writes it"
LABEL = re.compile(r"[a-z0-9][a-z0-9._+-]{0,299}")


class Variant(NamedTuple):
    """A variant of a release."""

    candidate: Candidate
    digest: str
    """Of its files: the name of the tree once it is installed."""
    blob: Blob
    checks: Mapping[str, str] = {}

    @property
    def label(self) -> str:
        """The label of the variant."""
        return self.candidate.label


class Release(NamedTuple):
    """What a publisher signs."""

    name: str
    version: Version
    variants: tuple[Variant, ...]
    license: str = ""
    source: str = ""
    upstream: str = ""
    commit: str = ""
    dirty: bool = False

    @property
    def depends(self) -> dict[str, str]:
        """Returns the packages that its variants need, with the ranges of their versions."""
        return {name: text for part in self.variants for name, text in part.candidate.depends.items()}

    def data(self) -> bytes:
        """Returns the bytes that are signed."""
        fields = self._asdict() | {"version": str(self.version), "format": FORMAT}
        fields["variants"] = [
            {
                "candidate": part.candidate.to_json(),
                "digest": part.digest,
                "blob": part.blob._asdict(),
                "checks": dict(part.checks),
            }
            for part in sorted(self.variants, key=lambda part: part.label)
        ]
        return canonical(fields)


class SignedRelease(NamedTuple):
    """The bytes of a release with the signatures beside them."""

    data: bytes
    signatures: tuple[signing.Named, ...] = ()

    @property
    def digest(self) -> str:
        """The release's digest, by which the index names it."""
        return hashlib.sha256(self.data).hexdigest()

    def file(self) -> bytes:
        """Returns the content of the file in a store."""
        return self.data + b"\n" + json.dumps([str(signature) for signature in self.signatures]).encode() + b"\n"


def file_name(digest: str) -> str:
    """Returns a release's name in a store."""
    return f"v1/releases/sha256/{digest[:2]}/{digest}"


def split(content: bytes, digest: str, where: str) -> SignedRelease:
    """Returns the signed bytes in a release's file. Nothing of them is parsed. Raises KernelFormatError."""
    data, newline, rest = content.partition(b"\n")
    if not newline or hashlib.sha256(data).hexdigest() != digest:
        raise KernelFormatError(where, "its bytes are not those that the index names", EXPECTED)
    try:
        texts = json.loads(rest)
        if not isinstance(texts, list) or len(texts) > MAX_SIGNATURES:
            raise ValueError(f"its last line is {ascii(texts)[:60]}, and no list of at most {MAX_SIGNATURES} texts")
        return SignedRelease(data, tuple(signing.parse(text, signing.SIGNATURE_BYTES) for text in texts))
    except (ValueError, AttributeError, RecursionError) as error:
        raise KernelFormatError(where, f"its signatures cannot be read ({error})", EXPECTED) from error


def parse(data: bytes, where: str, name: str = "", number: Version | None = None) -> Release:
    """Returns the release in signed bytes, which must be of this name and version. Raises KernelFormatError."""
    fields = Fields(parse_object(data, where, MAX_BYTES, EXPECTED), where, EXPECTED)
    if fields.whole("format") != FORMAT:
        raise fields.error(f"its format is {fields.whole('format')}, and this opforge reads {FORMAT}: update opforge")
    own_name = names.check(fields.text("name"), where)
    own_number = version.parse(fields.text("version"), where)
    if (name and own_name != name) or (number is not None and own_number != number):
        raise fields.error(f"it is {own_name} {own_number}, and not {name} {number}")
    parts = fields.get("variants", list, "list")
    if not 0 < len(parts) <= MAX_VARIANTS:
        raise fields.error(f"it has {len(parts)} variants, and not 1 to {MAX_VARIANTS}")
    variants = tuple(sorted((_variant(part, where) for part in parts), key=lambda part: part.label))
    labels = [part.label for part in variants]
    if len(set(labels)) != len(labels):
        raise fields.error("two of its variants have the same label")
    return Release(
        own_name,
        own_number,
        variants,
        fields.text("license", ""),
        fields.text("source", ""),
        fields.text("upstream", ""),
        fields.text("commit", ""),
        fields.flag("dirty", False),
    )


def _variant(value: Any, where: str) -> Variant:
    fields = Fields(value, f"{where}: variant", EXPECTED)
    blob = Fields(fields.table("blob"), f"{where}: blob", EXPECTED)
    size, unpacked = blob.whole("size"), blob.whole("unpacked")
    for owner, name in ((blob, "sha256"), (fields, "digest")):
        if not is_sha256(owner.text(name)):
            raise owner.error(f"{name!r} is {ascii(owner.text(name))[:100]}, and not 64 hex digits")
    if size > MAX_BLOB_BYTES or unpacked > MAX_UNPACKED_BYTES:
        raise blob.error(
            f"it has {size} bytes and unpacks to {unpacked}, more than {MAX_BLOB_BYTES} or {MAX_UNPACKED_BYTES}"
        )
    try:
        choice = candidate.parse(fields.table("candidate"))
        if not LABEL.fullmatch(choice.label):
            raise ValueError(f"'label' is {ascii(choice.label)[:100]}, and no label of a variant")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise fields.error(f"what it says of a variant is incomplete ({error})") from error
    checks = {str(check): str(outcome) for check, outcome in fields.table("checks", {}).items()}
    return Variant(choice, fields.text("digest"), Blob(blob.text("sha256"), size, unpacked), checks)


def tree_of(parts: Sequence[Variant]) -> dict[str, str]:
    """Returns the digest of each variant's files by its label: what two packings of one commit have in common."""
    return {part.label: part.digest for part in parts}
