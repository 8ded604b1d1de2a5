"""Pages: the code that one process has compiled for a topic, as entries. An entry is a key of the JIT, with its files.

    v2/jit/TOPIC.DIGITS/page.json         the topic, which entries are in it, the digest of its tree
    v2/jit/TOPIC.DIGITS/signed            of a fetched one alone: its statement, as in `cache/records/fetched_offer.py`
    v2/jit/TOPIC.DIGITS/tree/index.json   key -> path -> [SHA-256, bytes]
    v2/jit/TOPIC.DIGITS/tree/objects/SHA256

TOPIC is the topic's key, DIGITS begin the digest of the tree. A page is never changed: another one is added. All of it
is code, also what looks like data. So its files are named by their digests and by nothing of the JIT's, a digest counts
only if this user wrote it down or a trusted key signed it, and a file is compared each time that it is read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from opforge.cache import schema, trees
from opforge.cache.keys import bytes_digest, canonical, key_of
from opforge.cache.layout import Layout
from opforge.cache.schema import SHA256, TEXT, FormatError, items, record, row, table, text, whole
from opforge.foundation import file_owners, formats, settings
from opforge.foundation.files import folder_names, read_file, write_file

AREA = "jit"
RECORD, SIGNED, TREE, INDEX, OBJECTS = "page.json", "signed", "tree", "index.json", "objects"
MAX_ENTRIES, MAX_ENTRY_BYTES, MAX_BYTES = 4096, 64 << 20, 256 << 20
"""Bounds on a page, and on the files of an entry."""
MAX_INDEX_BYTES, MAX_FILES, MAX_FEATURES, MAX_PARTS = 8 << 20, 256, 1000, 32
DIGITS, PART_DIGITS = 16, 24
ADAPTER, LABEL = r"[a-z][a-z0-9-]{0,31}", r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}"
PART = text(f"[0-9a-f]{{{PART_DIGITS}}}", f"{PART_DIGITS} hex digits")
FACTS = record(
    {
        "adapter": text(ADAPTER, "the name of an adapter"),
        "label": text(LABEL, "up to 100 letters, digits, '_' and '-'"),
        "fingerprint": table(TEXT, most=MAX_PARTS),
        "features": items(TEXT, MAX_FEATURES),
        "holds": schema.choice("gpu", "host", "pickle"),
        "parts": items(PART, MAX_ENTRIES, 1),
        "made": whole(),
    }
)
"""The facts of a page: `parts` are digests of its keys, `features` the instructions that its host code may use."""
SCHEMA = record({"format": schema.version(formats.JIT_PAGE), "tree": SHA256, "facts": FACTS})
KEYS = text(r"[!-~]{1,300}", "up to 300 printable characters")
INDEXED = table(table(row(SHA256, whole(0, MAX_ENTRY_BYTES)), most=MAX_FILES), KEYS, MAX_ENTRIES)
Files = Mapping[str, bytes]
"""The files of an entry by their paths."""


class PageError(ValueError):
    """A page, or an entry of one, cannot be used; the text says why."""


class PageTopic(NamedTuple):
    """The subject by which pages are found: the JIT, its target, and all state that the keys of the JIT omit."""

    adapter: str
    label: str
    fingerprint: Mapping[str, str]

    @property
    def name(self) -> str:
        """Returns what a key must be trusted for, after the kind."""
        return f"{self.adapter}/{self.label}"

    @property
    def key(self) -> str:
        """Returns the key of all fields."""
        return key_of([self.adapter, self.label, dict(self.fingerprint)])

    def __str__(self) -> str:
        """Returns the name under which stores have it."""
        return f"{self.name}/{self.key}"


class Page(NamedTuple):
    """A page of a store. Its list of entries was compared with its digest; its files are when they are read."""

    folder: str
    digest: str
    facts: Mapping[str, Any]
    entries: Mapping[str, Mapping[str, tuple[str, int]]]
    owners: Collection[int]
    is_fetched: bool
    """Whether a remote had it when it was read: then another has signed it, also once its folder is removed."""

    @property
    def size(self) -> int:
        """Bytes of the files of all entries."""
        return sum(size for files in self.entries.values() for _sha256, size in files.values())

    def entry(self, key: str) -> Files:
        """Returns the files of an entry. Raises PageError, and FileNotFoundError if the page is being removed."""
        found = {}
        for path, (sha256, size) in self.entries[key].items():
            name = f"{OBJECTS}/{sha256}"
            hashes = trees.hashes_of(os.path.join(self.folder, TREE), [name], MAX_ENTRY_BYTES, self.owners)
            content = read_file(os.path.join(self.folder, TREE, name), MAX_ENTRY_BYTES)
            if {hashes[name], bytes_digest(content)} != {sha256} or len(content) != size:
                raise PageError(f"{path} of {key[:80]} is damaged, or was changed")
            found[path] = content
        return found


def topic_of(facts: Mapping[str, Any]) -> PageTopic:
    """Returns the topic that facts state."""
    return PageTopic(facts["adapter"], facts["label"], facts["fingerprint"])


def part_of(key: str) -> str:
    """Returns the digits that stand for an entry: those of its key. Two processes do not make the same bytes of it."""
    return bytes_digest(key.encode())[:PART_DIGITS]


def name_of(where: PageTopic, digest: str) -> str:
    """Returns the name of a page's folder."""
    return f"{where.key}.{digest[:DIGITS]}"


def folders(layout: Layout, key: str = "") -> list[str]:
    """Returns the folders of the pages of all topics, or of the topic with a key."""
    area = layout.path(AREA)
    return [os.path.join(area, name) for name in folder_names(area) if name.count(".") == 1 and name.startswith(key)]


def is_fetched(folder: str) -> bool:
    """Returns whether the page in a folder came from a remote. Raises OSError if that cannot be known."""
    try:
        os.lstat(os.path.join(folder, SIGNED))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def entry_problem(key: str, files: Files) -> str:
    """Returns why an entry cannot be kept; empty if it can."""
    size = sum(map(len, files.values()))
    if size > MAX_ENTRY_BYTES or len(files) > MAX_FILES:
        return f"it has {size} bytes in {len(files)} files, and an entry has at most {MAX_ENTRY_BYTES} in {MAX_FILES}"
    return schema.problem({key: {}}, INDEXED) or next(filter(None, map(trees.path_problem, files)), "")


def write(folder: str, entries: Iterable[tuple[str, Files]], facts: Mapping[str, Any]) -> str:
    """Writes a page to a new folder; returns the digest of its tree. An entry is in memory until the next one is taken.

    `facts` are those of FACTS without the parts. Raises OSError, FormatError for what could not be read again.
    """
    index = dict[str, dict[str, list[Any]]]()
    objects = os.path.join(folder, TREE, OBJECTS)
    os.makedirs(objects, mode=0o700)
    for key, files in entries:
        index[key] = {path: [bytes_digest(content), len(content)] for path, content in files.items()}
        for path, content in files.items():
            write_file(os.path.join(objects, index[key][path][0]), content)
    data = canonical(schema.checked(index, INDEXED))
    write_file(os.path.join(folder, TREE, INDEX), data)
    digest = _digest(data, index)
    write_record(folder, digest, {**facts, "parts": sorted(map(part_of, index))})
    return digest


def write_record(folder: str, digest: str, facts: Mapping[str, Any]) -> None:
    """Writes what a page is for. Raises OSError, FormatError."""
    schema.checked(facts, FACTS)
    write_file(os.path.join(folder, RECORD), canonical({"format": formats.JIT_PAGE, "tree": digest, "facts": facts}))


def _digest(data: bytes, index: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the digest of a tree by its list alone: the names of the other files are their digests."""
    objects = {sha256 for files in index.values() for sha256, _size in files.values()}
    return trees.digest_of_hashes({INDEX: bytes_digest(data), **{f"{OBJECTS}/{sha256}": sha256 for sha256 in objects}})


def read_record(folder: str) -> Mapping[str, Any]:
    """Returns what is written down of a page. Raises PageError, OSError."""
    try:
        value: Mapping[str, Any] = schema.read(os.path.join(folder, RECORD), SCHEMA)
    except FormatError as error:
        raise PageError(f"its {RECORD} cannot be used: {error}") from error
    return value


def read_index(tree: str, digest: str) -> Mapping[str, Mapping[str, tuple[str, int]]]:
    """Returns the list of the entries in a tree of this digest. Raises PageError, OSError."""
    try:
        data = read_file(os.path.join(tree, INDEX), MAX_INDEX_BYTES)
        index: Mapping[str, Mapping[str, tuple[str, int]]] = schema.parse(data, INDEXED, MAX_INDEX_BYTES)
    except ValueError as error:
        raise PageError(f"its {INDEX} cannot be used: {error}") from error
    if _digest(data, index) != digest:
        raise PageError("its list is not the one that its digest names: it is damaged, or was changed")
    paths = {path for files in index.values() for path in files}
    if problem := next(filter(None, map(trees.path_problem, sorted(paths))), ""):
        raise PageError(problem)
    return index


def read(folder: str, where: PageTopic, owners: Collection[int]) -> Page:
    """Returns the page in a folder, after comparing its list. Raises PageError, OSError."""
    if problem := file_owners.folder_problem(folder, owners, shared=settings.trusted_folders()):
        raise PageError(problem[0])
    fetched = is_fetched(folder)  # before the rest, which cannot be read of a folder that is removed meanwhile
    value = read_record(folder)
    if topic_of(value["facts"]) != where:
        raise PageError("it is of another topic")
    index = read_index(os.path.join(folder, TREE), value["tree"])
    if sorted(map(part_of, index)) != value["facts"]["parts"]:
        raise PageError(f"its {RECORD} names other entries than its {INDEX}")
    if os.path.basename(folder) != name_of(where, value["tree"]):
        raise PageError(f"it is named {os.path.basename(folder)}, expected {name_of(where, value['tree'])}")
    return Page(folder, value["tree"], value["facts"], index, owners, fetched)


def check_tree(tree: str, digest: str, owners: Iterable[int] = ()) -> None:
    """Raises PageError if the files below a folder are not the page's of this digest; OSError."""
    index = read_index(tree, digest)
    names = [f"{OBJECTS}/{sha256}" for files in index.values() for sha256, _size in files.values()]
    try:
        hashes = trees.hashes_of(tree, sorted({*names}), MAX_BYTES, frozenset(owners))
    except trees.TreeError as error:
        raise PageError(str(error)) from error
    if changed := [name for name, sha256 in hashes.items() if not name.endswith(sha256)]:
        raise PageError(f"it is damaged, or was changed: {changed[0]}")


def paths_in(folder: str) -> list[str]:
    """Returns the paths of the files of a page's tree, as its list names them. Raises PageError, OSError."""
    index = read_index(os.path.join(folder, TREE), read_record(folder)["tree"])
    objects = {sha256 for files in index.values() for sha256, _size in files.values()}
    return [INDEX, *(f"{OBJECTS}/{sha256}" for sha256 in sorted(objects))]
