"""Bundles: a folder with torch's artifacts and inductor's C++ libraries, and beside it what it is for.

    v2/graphs/TOPIC.DIGITS/bundle.json         the topic, what is in it, the digest of its tree
    v2/graphs/TOPIC.DIGITS/signed              of a fetched one alone: see `cache/records/fetched_offer.py`
    v2/graphs/TOPIC.DIGITS/tree/artifacts      what `torch.compiler.load_cache_artifacts` reads
    v2/graphs/TOPIC.DIGITS/tree/libraries/KEY.so

TOPIC is the topic's key, DIGITS begin the digest of the tree. Both hold pickles and machine code, so nothing of a tree
is opened before its digest is compared, and a digest counts only if this user wrote it down or a trusted key signed it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from opforge.cache import schema, trees
from opforge.cache.keys import canonical
from opforge.cache.schema import SHA256, TEXT, FormatError, items, record, table, text, whole
from opforge.cache.trees import digest_of_hashes
from opforge.foundation import file_owners, formats, settings
from opforge.foundation.files import write_file
from opforge.torch_internals import inductor

from . import topic
from .topic import Topic

AREA = "graphs"
RECORD, SIGNED, TREE, ARTIFACTS, LIBRARIES = "bundle.json", "signed", "tree", "artifacts", "libraries"
MAX_BYTES = 1 << 30
"""A larger bundle is not read: its files are hashed at each use."""
MAX_KEYS, MAX_OPS, MAX_FEATURES = 4096, 1000, 1000
DIGITS = 16
KEY_DIGITS, PART_DIGITS = 12, 24
PART = text(f"[0-9a-f]{{{PART_DIGITS}}}", f"{PART_DIGITS} hex digits")
BY_CONTENT = ("inductor", "aot_autograd", inductor.FUNCTION)
"""The kinds of artifacts of which several may have one key: graphs that differ in what they hold for."""
FACTS = record(
    {
        **topic.FIELDS,
        "features": items(TEXT, MAX_FEATURES),
        "parts": items(PART, MAX_KEYS, 1),
        "ops": table(TEXT, most=MAX_OPS),
        "made": whole(),
    }
)
"""What is said of a bundle: `parts` are digests of what is in it, `ops` the entries of the ops that were loaded."""
SCHEMA = record({"format": schema.version(formats.GRAPHS), "tree": SHA256, "facts": FACTS})


class BundleError(ValueError):
    """A bundle cannot be used; the text says why."""


class UnfitError(BundleError):
    """A bundle is for another machine: it stays, as the store may be shared."""


class Bundle(NamedTuple):
    """A bundle in the store, whose files were compared with their digest."""

    folder: str
    digest: str
    """Of its tree."""
    facts: Mapping[str, Any]
    libraries: Mapping[str, str]
    """Key -> path."""
    is_fetched: bool
    """Whether a remote had it: then another has signed what is in it."""

    @property
    def parts(self) -> frozenset[str]:
        """What is in it."""
        return frozenset(self.facts["parts"])

    def artifacts(self) -> bytes:
        """Returns what torch loads. Raises OSError."""
        with open(os.path.join(self.folder, TREE, ARTIFACTS), "rb") as file:
            return file.read()


def part_of(kind: str, key: str, content: bytes = b"") -> str:
    """Returns the digits that stand for something in a bundle: those of its key, and those of its content."""
    by_key = hashlib.sha256(f"{kind}\0{key}".encode()).hexdigest()[:KEY_DIGITS]
    return by_key + hashlib.sha256(content if kind in BY_CONTENT else b"").hexdigest()[:KEY_DIGITS]


def digest_of_artifact(kind: str, key: str, content: bytes) -> str:
    """Returns what tells an artifact from all others."""
    return hashlib.sha256(f"{kind}\0{key}\0".encode() + content).hexdigest()


def keys_of(parts: Iterable[str]) -> frozenset[str]:
    """Returns the digits of the keys alone: two processes that compile one graph do not get the same bytes."""
    return frozenset(part[:KEY_DIGITS] for part in parts)


def write(folder: str, artifacts: bytes, libraries: Mapping[str, str], facts: Mapping[str, Any]) -> str:
    """Writes a bundle's files to a new folder; returns the digest of its tree.

    `libraries` are paths by key. Raises OSError, BundleError and FormatError for what could not be read again.
    """
    schema.checked(facts, FACTS)
    size = len(artifacts) + sum(os.path.getsize(path) for path in libraries.values())
    if size > MAX_BYTES:
        raise BundleError(f"they have {size} bytes, and a bundle has at most {MAX_BYTES}")
    os.makedirs(os.path.join(folder, TREE, LIBRARIES), mode=0o700)
    hashes = {ARTIFACTS: hashlib.sha256(artifacts).hexdigest()}
    write_file(os.path.join(folder, TREE, ARTIFACTS), artifacts)
    for key, path in libraries.items():
        with open(path, "rb") as file:
            content = file.read()
        name = f"{LIBRARIES}/{key}.so"
        hashes[name] = hashlib.sha256(content).hexdigest()
        write_file(os.path.join(folder, TREE, name), content, 0o700)
    digest = digest_of_hashes(hashes)
    write_record(folder, digest, facts)
    return digest


def write_record(folder: str, digest: str, facts: Mapping[str, Any]) -> None:
    """Writes what a bundle is for. Raises OSError."""
    value = {"format": formats.GRAPHS, "tree": digest, "facts": dict(facts)}
    write_file(os.path.join(folder, RECORD), canonical(value))


def name_of(where: Topic, digest: str) -> str:
    """Returns the name of a bundle's folder."""
    return f"{where.key}.{digest[:DIGITS]}"


def read(folder: str, where: Topic, owners: Collection[int]) -> Bundle:
    """Returns the bundle in a folder after comparing its files. Raises BundleError, OSError."""
    problem = file_owners.folder_problem(folder, owners, shared=settings.trusted_folders())
    if problem:
        raise BundleError(problem[0])
    value = read_record(folder)
    facts = value["facts"]
    if stated := facts_problem(facts, where):
        raise BundleError(stated)
    if lacking := topic.lacking(facts["features"]):
        raise UnfitError(lacking)
    check_tree(os.path.join(folder, TREE), value["tree"], owners)
    if os.path.basename(folder) != name_of(where, value["tree"]):
        raise BundleError(f"it is named {os.path.basename(folder)}, expected {name_of(where, value['tree'])}")
    libraries = os.path.join(folder, TREE, LIBRARIES)
    paths = {name.removesuffix(".so"): os.path.join(libraries, name) for name in _names(libraries)}
    return Bundle(folder, value["tree"], facts, paths, is_fetched(folder))


def is_fetched(folder: str) -> bool:
    """Returns whether the bundle in a folder came from a remote."""
    return os.path.lexists(os.path.join(folder, SIGNED))


def read_record(folder: str) -> Mapping[str, Any]:
    """Returns what is written down of a bundle. Raises BundleError, OSError."""
    try:
        value: Mapping[str, Any] = schema.read(os.path.join(folder, RECORD), SCHEMA)
    except FormatError as error:
        raise BundleError(f"its {RECORD} cannot be used: {error}") from error
    return value


def facts_problem(facts: Mapping[str, Any], where: Topic) -> str:
    """Returns why a bundle with these facts is not of a topic; empty if it is."""
    stated = topic.of_facts(facts)
    for name, one, other in zip(Topic._fields, stated, where, strict=True):
        if one != other:
            return f"it is for another {name}: {ascii(one)[:60]}, expected {other!r}"
    return ""


def check_tree(folder: str, digest: str, owners: Iterable[int] = ()) -> None:
    """Raises BundleError if the files below a folder are not the bundle's of this digest; OSError.

    `owners` are the users that they may belong to; anybody, if there are none.
    """
    try:
        hashes = trees.hashes_of(folder, paths_in(folder), MAX_BYTES, frozenset(owners))
    except trees.TreeError as error:
        raise BundleError(str(error)) from error
    if digest_of_hashes(hashes) != digest:
        raise BundleError("its files are not those that its digest names: it is damaged, or was changed")


def paths_in(folder: str) -> list[str]:
    """Returns the paths of the files of a tree."""
    return [ARTIFACTS, *(f"{LIBRARIES}/{name}" for name in _names(os.path.join(folder, LIBRARIES)))]


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".so"))
    except FileNotFoundError:
        return []
