"""A store with any number of topics: one real op and one real package, and copies of them under other names."""

from __future__ import annotations

import hashlib
import json
import os
import sys

from benchmarks.packages import kernel_packages
from benchmarks.scratch import Scratch
from opforge.cache.keys import canonical
from opforge.cache.records.entry import with_record_key
from opforge.remote import statements, topics
from opforge.remote.blobs import Blob, Tree
from opforge.remote.signatures import signing
from opforge.remote.statements import Signed, Statement
from opforge.remote.topics import ListedStatement, Listing

PACKAGES = 10
"""One of so many topics is a package's."""
FAKE_BLOB = b"no library"
OLD = 3 * 86400
"""Seconds: so old are all files, that gc looks at each."""


class Patterns:
    """What is copied: the only statement of an op's topic in a store, and that of a package."""

    def __init__(self, root: str) -> None:
        """Reads the patterns from a store in a folder that holds one of each."""
        (op,) = _files(os.path.join(root, topics.FOLDER, "op"))
        (self.op,) = topics.read_frame(_read(op))
        (package,) = _files(os.path.join(root, statements.FOLDER))
        self.package = statements.read_file(_read(package), os.path.basename(package))


def write_patterns(scratch: Scratch, root: str) -> None:
    """Publishes an op and a package to a store in a folder."""
    op, project = scratch.new_folder("pattern-op"), scratch.new_folder("pattern-package")
    with open(os.path.join(op, "plain.cpp"), "w", encoding="utf-8") as file:
        file.write('extern "C" __attribute__((visibility("default"))) int value() { return 1; }\n')
    settings = {"BENCH_OP": op, "OPFORGE_REMOTES": ""}
    settings |= {name: scratch.new_folder(name) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    for step in (["key"], ["push", f"file://{root}"]):
        scratch.run_child("store.child_remote", *step, **settings)
    kernel_packages.write_project(project, 0)
    for words in (("pack", project, "--no-try"), ("publish", f"file://{root}", project)):
        scratch.output([sys.executable, "-m", "opforge", *words], **settings)


def fill(root: str, patterns: Patterns, count: int, now: float) -> list[tuple[str, str]]:
    """Adds `count` topics to the store in a folder, each with a blob of its own; returns their kinds and names.

    The files say what publishers would have written, but nobody has signed the copies, and their blobs hold nothing.
    """
    names = []
    op, package = statements.parse(patterns.op.data), statements.parse(patterns.package.data)
    for number in range(count):
        if number % PACKAGES:
            data = _op(op, patterns.op.signatures, number)
            kind, name = "op", data[1]
            _write(root, topics.name_of(kind, name), topics.frame([data[0]]), now)
        else:
            kind, name = "package", f"bench/copy-{number}"
            signed = Signed(
                package._replace(topic=name, trees=_trees(package, number)).data(), patterns.package.signatures
            )
            label = str(package.facts["version"])
            listing = Listing(kind, name, 1, {label: ListedStatement(signed.digest)})
            _write(root, statements.name_of(signed.digest), signed.file(), now)
            _write(root, topics.name_of(kind, name), listing.data(), now)
        _write(root, _blob(number).name, FAKE_BLOB, now)
        names.append((kind, name))
    return names


def _op(pattern: Statement, signatures: tuple[signing.Named, ...], number: int) -> tuple[Signed, str]:
    description = f"{number:032x}"
    record = json.loads(canonical(pattern.facts["record"]))
    record = with_record_key({**record, "description": description})
    stated = pattern._replace(topic=description, facts={"record": record}, trees=_trees(pattern, number))
    return Signed(stated.data(), signatures), description


def _blob(number: int) -> Blob:
    return Blob(hashlib.sha256(b"%d" % number).hexdigest(), len(FAKE_BLOB), len(FAKE_BLOB))


def _trees(pattern: Statement, number: int) -> tuple[Tree, ...]:
    # An op's blob must not unpack to less than its library.
    blob = _blob(number)._replace(unpacked=pattern.trees[0].blob.unpacked)
    return (*(tree._replace(blob=blob) for tree in pattern.trees),)


def _files(folder: str) -> list[str]:
    return [os.path.join(path, name) for path, _folders, names in os.walk(folder) for name in names]


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(root: str, name: str, data: bytes, now: float) -> None:
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    os.utime(path, (now - OLD, now - OLD))
