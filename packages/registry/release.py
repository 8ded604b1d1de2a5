"""Releases: statements of the kind `package`. Their topic is the name, their trees are the variants' files.

A release never changes. Its facts are the version, where the sources are, and for each variant its label, what decides
whether it fits, the digest of its tree, and the outcome of its checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.schema import FLAG, SHA256, TEXT, FormatError
from opforge.errors import KernelFormatError, PublishError
from opforge.packages.choose import candidate
from opforge.packages.choose.candidate import VariantCandidate
from opforge.packages.form import names, version
from opforge.packages.form.version import Version
from opforge.packages.installed import withdrawals
from opforge.remote import statements, topics
from opforge.remote.blobs import Blob, Tree
from opforge.remote.kinds import Kind
from opforge.remote.offers import BY_LABEL, Offer
from opforge.remote.statements import Signed, Statement, UnreadableStatement
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.withdrawal_lists import Withdrawals

KIND = "package"
MAX_BYTES = statements.MAX_FILE_BYTES
"""Of a file: the statement and its signatures."""
EXPECTED = "a release as opforge publish writes it"
LABEL = re.compile(r"[a-z0-9][a-z0-9._+-]{0,299}")
VARIANT = schema.record(
    {"candidate": candidate.SCHEMA, "digest": SHA256, "checks": schema.table(TEXT)},
)
BENCHMARK = schema.record(
    {
        "machine": schema.table(TEXT),
        "results": schema.items(
            schema.record(
                {"op": TEXT, "case": TEXT, "size": TEXT, "dtype": TEXT, "unit": TEXT, "rates": schema.table(TEXT)}
            ),
            10_000,
        ),
    }
)
"""The results of `opforge bench` on one machine: the rate of each contender, as it is shown."""
FACTS = schema.record(
    {
        "version": TEXT,
        "variants": schema.items(VARIANT, statements.MAX_TREES, 1),
        "license": TEXT,
        "source": TEXT,
        "upstream": TEXT,
        "commit": TEXT,
        "dirty": FLAG,
    },
    optional={"benchmarks": schema.items(BENCHMARK, 100)},
)
"""The fields of a statement of this kind."""


class Variant(NamedTuple):
    """A variant of a release."""

    candidate: VariantCandidate
    tree: Tree
    """Its files; the digest is the name of their folder once it is installed."""
    checks: Mapping[str, str] = {}

    @property
    def label(self) -> str:
        """The label of the variant."""
        return self.candidate.label

    @property
    def digest(self) -> str:
        """The digest of its tree."""
        return self.tree.digest

    @property
    def blob(self) -> Blob:
        """The blob of its tree."""
        return self.tree.blob


class Release(NamedTuple):
    """The release that a publisher signs."""

    name: str
    version: Version
    variants: tuple[Variant, ...]
    license: str = ""
    source: str = ""
    upstream: str = ""
    commit: str = ""
    dirty: bool = False
    benchmarks: Sequence[Mapping[str, Any]] = ()
    """The measurements, by machine."""

    @property
    def subject(self) -> str:
        """The scope that a key must be trusted for."""
        return f"{KIND}:{self.name}"

    @property
    def title(self) -> str:
        """Its title in lists of withdrawals."""
        return PACKAGE.title(self.name, str(self.version))

    @property
    def depends(self) -> dict[str, str]:
        """Returns the packages that its variants need, with the ranges of their versions."""
        return {name: text for part in self.variants for name, text in part.candidate.depends.items()}

    def statement(self) -> Statement:
        """Returns the statement that is signed."""
        parts = sorted(self.variants, key=lambda part: part.label)
        trees = {part.digest: part.tree for part in parts}
        facts = {name: value for name, value in self._asdict().items() if name in FACTS["properties"]}
        facts["version"] = str(self.version)
        if not self.benchmarks:
            del facts["benchmarks"]
        facts["variants"] = [
            {"candidate": part.candidate.to_json(), "digest": part.digest, "checks": dict(part.checks)}
            for part in parts
        ]
        return Statement(KIND, self.name, tuple(trees[digest] for digest in sorted(trees)), facts)


def split(content: bytes, digest: str, where: str) -> Signed:
    """Returns the signed bytes in a release's file. Nothing of them is parsed. Raises KernelFormatError."""
    try:
        return statements.read_file(content, digest)
    except UnreadableStatement as error:
        raise KernelFormatError(where, str(error), EXPECTED) from error


def parse(data: bytes, where: str, name: str = "", number: Version | None = None) -> Release:
    """Returns the release in signed bytes, which must be of this name and version. Raises KernelFormatError."""
    try:
        release = of_statement(statements.parse_as(data, KIND, name), where)
    except UnreadableStatement as error:
        raise KernelFormatError(where, str(error), EXPECTED) from error
    if number is not None and release.version != number:
        raise KernelFormatError(where, f"it is {release.name} {release.version}, and not {name} {number}", EXPECTED)
    return release


def of_statement(stated: Statement, where: str) -> Release:
    """Returns the release that a statement of this kind is of. Raises KernelFormatError."""
    try:
        return _release(stated, schema.checked(stated.facts, FACTS), where)
    except FormatError as error:
        raise KernelFormatError(where, f"in its facts {error}", EXPECTED) from error


def _release(stated: Statement, facts: Mapping[str, Any], where: str) -> Release:
    trees = {tree.digest: tree for tree in stated.trees}
    variants = tuple(sorted((_variant(part, trees) for part in facts["variants"]), key=lambda part: part.label))
    labels = [part.label for part in variants]
    if len(set(labels)) != len(labels):
        raise FormatError("two of the variants have the same label")
    if {part.digest for part in variants} != trees.keys():
        raise FormatError("the trees of the variants are not those that it names")
    number = version.parse(facts["version"], where)
    return Release(names.check(stated.topic, where), **{**facts, "version": number, "variants": variants})


def _variant(value: Mapping[str, Any], trees: Mapping[str, Tree]) -> Variant:
    if value["digest"] not in trees:
        raise FormatError(f"the tree {value['digest']} of a variant is not in the list of trees")
    choice = candidate.parse(value["candidate"])
    if not LABEL.fullmatch(choice.label):
        raise FormatError(
            f"'label' of a variant is {ascii(choice.label)[:100]}: expected letters, digits, '-', '_' and '.'"
        )
    return Variant(choice, trees[value["digest"]], value["checks"])


def tree_of(parts: Sequence[Variant]) -> dict[str, str]:
    """Returns the digest of each variant's files by its label: what two packings of one commit have in common."""
    return {part.label: part.digest for part in parts}


class PackageKind(Kind):
    """Releases of packages: their newest matters, so the list of their signer names them, and a topic does."""

    name, noun, is_inline, needs_withdrawals, is_released = KIND, "package", False, False, True
    title_form = "ORG/NAME@VERSION"
    merge = BY_LABEL
    maker = "See opforge install"

    def offer(self, stated: Statement) -> Offer:
        """Returns the package, its version, and the labels of its variants. Raises KernelFormatError."""
        release = of_statement(stated, stated.topic)
        variants = ", ".join(part.label for part in release.variants)
        return self.offered(release.name, str(release.version), variants, stated.facts, stated.trees)

    def canonical(self, label: str) -> str:
        """Returns the version as no package writes it twice: `1.0` is `1`."""
        return label if version.read(label) is None else version.parse(label).canonical

    def note_withdrawals(self, listed: Withdrawals) -> None:
        """Notes in the files of installed releases what a list says of them."""
        withdrawals.note(listed)

    def withdrawable(self, store: ObjectStore, text: str, released: Mapping[str, Mapping[str, str]]) -> str:
        """Returns the title of a release, which the key's own list must name, or the index of the store."""
        name, _at, label = text.partition("@")
        if not names.is_name(name) or version.read(label) is None:
            raise ValueError(f"expected {self.title_form}, as opforge ls URL shows both")
        title, own = self.title(name, label), released.get(f"{self.name}:{name}", {})
        if self.canonical(label) in own:  # the index is unsigned: an old one must not keep anybody from withdrawing
            return title
        listing = topics.read_named(store, self.name, name)
        labels = {self.canonical(one) for one in listing.statements} if listing else set()
        if self.canonical(label) not in labels:
            labels |= own.keys()
            versions = sorted((version.parse(one) for one in labels), reverse=True)[:10]
            there = ", ".join(map(str, versions)) or "none"
            problem = "there is no such release"
            number = version.parse(label)
            raise PublishError(f"{name} {number}", store.url, problem, f"There are: {there}", "withdrawn in")
        return title


PACKAGE = PackageKind()
