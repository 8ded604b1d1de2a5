"""The releases that are installed in a folder: read for loading, listing and removing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.records.schemas import STAMP
from opforge.cache.schema import SHA256, TEXT, FormatError
from opforge.foundation import formats
from opforge.foundation.files import folder_names
from opforge.packages.choose import candidate
from opforge.packages.choose.candidate import VariantCandidate
from opforge.packages.form import version
from opforge.packages.form.version import Range, Version

from .layout import Root

VARIANT = schema.record(
    {
        "candidate": candidate.SCHEMA,
        "digest": SHA256,  # it becomes a part of a path
        "id": TEXT,
        "files": schema.table(TEXT),
        "metadata": SHA256,
        "receipt": schema.table(STAMP),
        "size": schema.whole(),
    },
    optional={"bytecode": schema.table(TEXT)},
)
SCHEMA = schema.record(
    {
        "format": schema.version(formats.INSTALLED),
        "name": TEXT,
        "version": TEXT,
        "digest": schema.text("([0-9a-f]{64})?", "64 hex digits, or an empty text"),
        "signer": TEXT,
        "source": TEXT,
        "withdrawn": TEXT,
        "stops": TEXT,
        "variants": schema.items(VARIANT),
    }
)
"""The file of an installed release."""


class InstalledVariant(NamedTuple):
    """A variant that is installed."""

    candidate: VariantCandidate
    digest: str
    folder: str
    id: str
    files: Mapping[str, str]
    metadata_sha256: str
    receipt: Mapping[str, Any]
    size: int
    bytecode: Mapping[str, str] = {}
    """Path -> digest of the bytecode that was made with the installation."""


class Installed(NamedTuple):
    """A release that is installed."""

    name: str
    version: Version
    root: Root
    digest: str = ""
    """Of the signed release; empty for a package that was installed from a folder."""
    signer: str = ""
    source: str = ""
    """Where it came from, without credentials."""
    withdrawn: str = ""
    """Why its signer has withdrawn it, as far as was known when remotes were asked last."""
    variants: tuple[InstalledVariant, ...] = ()
    stops: str = ""
    """The effect of its withdrawal: "choosing", or "loading" too; empty if it was not withdrawn."""

    @property
    def refusal(self) -> str:
        """Returns why it is not loaded any more, or an empty text."""
        reason = f": {self.withdrawn}" if self.withdrawn else ""
        return f"the key {self.signer} has withdrawn it{reason}" if self.stops == "loading" else ""

    @property
    def assurance(self) -> str:
        """Returns the release's signer in words."""
        return f"signed by {self.signer}" if self.signer else "unsigned"


def versions(root: Root, name: str) -> list[Version]:
    """Returns the installed versions of a package in a folder, the newest first."""
    return sorted(filter(None, map(_version_of, folder_names(root.join("names", *name.split("/"))))), reverse=True)


def _version_of(file: str) -> Version | None:
    parts = version.read(file[:-5]) if file.endswith(".json") else None
    return Version(parts[0], parts[1] or 0) if parts else None


def every(root: Root) -> Iterator[tuple[str, Version]]:
    """Yields the name and the version of each release in a folder.

    Raises OSError for what cannot be listed, which `names` and `versions` pass over: it is not known to be empty.
    """
    base = root.join("names")
    for organization in _listed(base):
        for name in _listed(os.path.join(base, organization)):
            for number in map(_version_of, _listed(os.path.join(base, organization, name))):
                if number:
                    yield f"{organization}/{name}", number


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read(root: Root, name: str, number: Version) -> Installed | None:
    """Returns an installed release; None if it is not there, or its file cannot be read."""
    try:
        value = schema.read(root.release(name, number.canonical), SCHEMA)
        variants = tuple(_variant(root, part) for part in value["variants"])
    except (OSError, FormatError):
        return None
    if value["name"] != name or version.read(value["version"]) is None:
        return None
    written = version.parse(value["version"])
    if written != number:
        return None
    texts = {field: value[field] for field in ("digest", "signer", "source", "withdrawn", "stops")}
    return Installed(name, written, root, variants=variants, **texts)


def _variant(root: Root, part: Mapping[str, Any]) -> InstalledVariant:
    """Returns a variant in the file of a release. Raises FormatError."""
    return InstalledVariant(
        candidate.from_json(part["candidate"]),
        part["digest"],
        root.tree(part["digest"]),
        part["id"],
        part["files"],
        part["metadata"],
        part["receipt"],
        part["size"],
        part.get("bytecode", {}),
    )


def to_json(release: Installed) -> dict[str, Any]:
    """Returns the content of an installed release's file."""
    return {
        "format": formats.INSTALLED,
        "name": release.name,
        "version": str(release.version),
        "digest": release.digest,
        "signer": release.signer,
        "source": release.source,
        "withdrawn": release.withdrawn,
        "stops": release.stops,
        "variants": [
            {
                "candidate": part.candidate.to_json(),
                "digest": part.digest,
                "id": part.id,
                "files": dict(part.files),
                "metadata": part.metadata_sha256,
                "receipt": dict(part.receipt),
                "size": part.size,
                "bytecode": dict(part.bytecode),
            }
            for part in release.variants
        ],
    }


def matching(root: Root, name: str, wanted_range: Range) -> Iterator[Installed]:
    """Yields the installed releases of a package in a range of versions, the newest first."""
    for number in versions(root, name):
        if number in wanted_range and (release := read(root, name, number)) is not None:
            yield release


def damaged(root: Root, name: str) -> list[Version]:
    """Returns the installed versions of a package whose file cannot be read: it is damaged, or a newer opforge's."""
    return [number for number in versions(root, name) if read(root, name, number) is None]


def names(root: Root) -> list[str]:
    """Returns the names of the packages that are installed in a folder, sorted."""
    base = root.join("names")
    found_names = []
    for organization in _folders(base):
        found_names += [f"{organization}/{name}" for name in _folders(os.path.join(base, organization))]
    return sorted(name for name in found_names if versions(root, name))


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as children:
            return [child.name for child in children if child.is_dir()]
    except OSError:
        return []


def needing(removed: Sequence[Installed], roots: Sequence[Root]) -> list[str]:
    """Returns a line for each installed release that needs one of the removed ones, and that no other one serves.

    Those that are removed, or would be, may still be there: they are not counted.
    """
    gone = {(release.root.path, release.name, release.version) for release in removed}
    every = {
        (root.path, name, release.version): release
        for root in roots
        for name in names(root)
        for release in matching(root, name, version.ANY)
    }
    kept = [release for place, release in every.items() if place not in gone]
    lost = {release.name for release in removed}
    lines = []
    for release in kept:
        needs = {name: text for part in release.variants for name, text in part.candidate.depends.items()}
        for name in sorted(lost & needs.keys()):
            text = needs[name]
            numbers = version.parse_range(None if text.startswith("@") else text or None)
            usable = (other for other in kept if other.name == name and not other.refusal)
            if not any(other.version in numbers for other in usable):
                what = " ".join(filter(None, (name, text)))
                lines.append(f"{release.name} {release.version} in {release.root.path} needs {what}")
    return lines
