"""Releases: statements of the kind `package`. Their topic is the name, their trees are the variants' files.

A release never changes. Its facts are the version, where the sources are, and for each variant its label, what decides
whether it fits, the digest of its tree, and the outcome of its checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opforge.errors import KernelFormatError
from opforge.errors.base import damage
from opforge.packages.choose import candidate
from opforge.packages.choose.candidate import VariantCandidate
from opforge.packages.form import names, version
from opforge.packages.form.json_text import Fields, is_sha256
from opforge.packages.form.version import Version
from opforge.remote import statements
from opforge.remote.blobs import Blob, Tree
from opforge.remote.kinds import Kind, Shown
from opforge.remote.statements import Signed, Statement, UnreadableStatement

KIND = "package"
MAX_BYTES = statements.MAX_BYTES + (64 << 10)
"""Of a file: the statement and its signatures."""
EXPECTED = "a release as opforge publish writes it"
LABEL = re.compile(r"[a-z0-9][a-z0-9._+-]{0,299}")
FACTS = ("version", "variants", "license", "source", "upstream", "commit", "dirty")


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

    def statement(self) -> Statement:
        """Returns what is signed."""
        parts = sorted(self.variants, key=lambda part: part.label)
        trees = {part.digest: part.tree for part in parts}
        facts = {name: value for name, value in self._asdict().items() if name in FACTS}
        facts["version"] = str(self.version)
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
    fields = Fields(stated.facts, where, EXPECTED)
    fields.only(FACTS)
    parts = fields.get("variants", list, "list")
    if not parts:
        raise fields.error("it has no variants")
    trees = {tree.digest: tree for tree in stated.trees}
    variants = tuple(sorted((_variant(part, trees, where) for part in parts), key=lambda part: part.label))
    labels = [part.label for part in variants]
    if len(set(labels)) != len(labels):
        raise fields.error("two of its variants have the same label")
    if {part.digest for part in variants} != trees.keys():
        raise fields.error("its trees are not those of its variants")
    return Release(
        names.check(stated.topic, where),
        version.parse(fields.text("version"), where),
        variants,
        fields.text("license", ""),
        fields.text("source", ""),
        fields.text("upstream", ""),
        fields.text("commit", ""),
        fields.flag("dirty", False),
    )


def _variant(value: Any, trees: Mapping[str, Tree], where: str) -> Variant:
    fields = Fields(value, f"{where}: variant", EXPECTED)
    fields.only(("candidate", "digest", "checks"))
    digest = fields.text("digest")
    if not is_sha256(digest) or digest not in trees:
        raise fields.error(f"its tree {ascii(digest)[:80]} is not in the list of trees")
    try:
        choice = candidate.parse(fields.table("candidate"))
        if not LABEL.fullmatch(choice.label):
            raise ValueError(f"'label' is {ascii(choice.label)[:100]}, and no label of a variant")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise fields.error(f"what it says of a variant is incomplete: {damage(error)}") from error
    checks = {str(check): str(outcome) for check, outcome in fields.table("checks", {}).items()}
    return Variant(choice, trees[digest], checks)


def tree_of(parts: Sequence[Variant]) -> dict[str, str]:
    """Returns the digest of each variant's files by its label: what two packings of one commit have in common."""
    return {part.label: part.digest for part in parts}


class PackageKind(Kind):
    """Releases of packages: their newest matters, so a topic names them, and TUF can cover it."""

    name, is_inline, needs_withdrawals = KIND, False, False

    def subject(self, statement: Statement) -> str:
        """Returns the name of the package."""
        return statement.topic

    def canonical(self, label: str) -> str:
        """Returns the version as no package writes it twice: `1.0` is `1`."""
        return label if version.read(label) is None else version.parse(label).canonical

    def shown(self, statement: Statement) -> Shown:
        """Returns the package, its version, and the labels of its variants."""
        release = of_statement(statement, statement.topic)
        return Shown(release.name, str(release.version), ", ".join(part.label for part in release.variants))
