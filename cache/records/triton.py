"""What Triton compiled or timed itself, under Triton's own keys: kernels, and the timings of its autotuner.

    v2/triton/KEY/NAME.EXT   the files, under Triton's names
    v2/triton/KEY/record     what they are, with their digests; written last, so that without it nothing is finished
    v2/triton/KEY/fetched    of what a remote had alone: its statement, with the signatures, as in `fetched.py`

KEY is Triton's digest of everything that decides the content: the kernel's source, the target, the options, Triton.
Triton's names have a dot, and these two have none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from opforge import formats, settings, trust
from opforge.cache import schema, trees
from opforge.cache.filesystem.files import discard, size_of
from opforge.cache.keys import canonical
from opforge.cache.layout import Layout
from opforge.cache.schema import SHA256, record, table, text
from opforge.cache.trees import TreeError
from opforge.machine_folder import make_folder, write_file

from . import size_log

AREA = "triton"
RECORD, FETCHED = "record", "fetched"
TIMINGS = ".autotune.json"
"""How the files end in which Triton's autotuner keeps what it has timed."""
MAX_BYTES, MAX_FILES, MAX_NAME = 256 << 20, 64, 150
"""Bounds on a kernel's files. Triton itself cuts a name at 150 characters."""
DIGITS = 16
KEY = r"[A-Z2-7]{52}"
FILE = text(r"\w[^/\0]{0,250}\.\w+", "the name of a file of Triton's")
FIELDS = {
    "name": text(rf"\w{{1,{MAX_NAME}}}", "the name of a kernel"),
    "triton": text(r"[ -~]{0,100}", "a version"),
    "target": text(r"[ -~]{0,100}", "a device with its architecture"),
}
"""What is said of a kernel, besides its files."""
SCHEMA = record({"format": schema.version(formats.KERNEL), **FIELDS, "files": table(SHA256, FILE, MAX_FILES)})


class Kernel(NamedTuple):
    """A kernel or timings in a store."""

    folder: str
    record: Mapping[str, Any]
    is_fetched: bool = False
    """Whether a remote had it."""
    problem: str = ""
    """Why it cannot be used; then `record` is empty."""

    @property
    def key(self) -> str:
        """Triton's key."""
        return os.path.basename(self.folder)

    @property
    def name(self) -> str:
        """The name of the kernel's function; empty if there is a problem."""
        return str(self.record.get("name", ""))

    @property
    def digest(self) -> str:
        """The digest of the tree of its files."""
        return trees.digest_of_hashes(self.record.get("files", {}))

    @property
    def label(self) -> str:
        """What tells it from all others of its name."""
        return self.digest[:DIGITS]

    @property
    def facts(self) -> dict[str, str]:
        """What is said of it, besides its files."""
        return {name: self.record[name] for name in FIELDS}


def folder_of(layout: Layout, key: str) -> str:
    """Returns where what has this key lies in a store."""
    return layout.path(AREA, key)


def name_of(filename: str) -> str:
    """Returns the name of the kernel that a file of Triton's is about: of `NAME.json`, or of timings."""
    stem = filename.removesuffix(TIMINGS).removesuffix(".json")
    return re.sub(r"\W", "_", stem)[:MAX_NAME] or "_"


def write(folder: str, facts: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Writes down what the files in a folder are, with their SHA-256. Raises OSError, FormatError."""
    value = {"format": formats.KERNEL, **facts, "files": dict(files)}
    write_file(os.path.join(folder, RECORD), canonical(schema.checked(value, SCHEMA)))


def read(folder: str, owners: Collection[int]) -> Kernel:
    """Returns what is in a folder, after comparing every file with its digest.

    Raises FileNotFoundError if nothing is finished there, OSError, and ValueError for what must not be used.
    """
    if problem := trust.folder_problem(folder, owners, shared=settings.trusted_folders()):
        raise TreeError(problem[0])
    kernel = _described(folder)
    files = kernel.record["files"]
    try:
        hashes = trees.hashes_of(folder, files, MAX_BYTES, owners)
    except FileNotFoundError as error:
        raise TreeError(f"{os.path.basename(error.filename)} is missing") from error
    if hashes != files:
        changed = ", ".join(sorted(path for path in files if hashes[path] != files[path]))
        raise TreeError(f"it is damaged, or was changed: {changed}")
    return kernel


def _described(folder: str) -> Kernel:
    value = schema.read(os.path.join(folder, RECORD), SCHEMA)
    return Kernel(folder, value, os.path.lexists(os.path.join(folder, FETCHED)))


def files_in(folder: str) -> Mapping[str, str]:
    """Returns the files that the record in a folder names, with their SHA-256. Raises OSError, FormatError."""
    files: Mapping[str, str] = _described(folder).record["files"]
    return files


def stored(root: str) -> Iterator[Kernel]:
    """Yields what is finished in a store, in the order of the keys. Their files are not compared."""
    layout = Layout(root)
    try:
        keys = sorted(os.listdir(layout.path(AREA)))
    except OSError:
        return
    for key in keys:
        folder = folder_of(layout, key)
        if "." in key:
            continue  # it is being removed
        try:
            yield _described(folder)
        except FileNotFoundError:
            continue  # a library that Triton compiled for itself, or a kernel that is not finished
        except (OSError, ValueError) as error:
            if os.path.isdir(folder):
                yield Kernel(folder, {}, problem=getattr(error, "strerror", None) or str(error))


def add(layout: Layout, made: str, key: str) -> str:
    """Makes a finished folder the one of a key, in the place of what could not be used; returns it. Raises OSError."""
    target = folder_of(layout, key)
    make_folder(os.path.dirname(target))
    discard(target)
    os.rename(made, target)
    size_log.append(layout, size_of(target))
    return target
