"""Tuning results: which values of an op's tunables are faster than its defaults on such a machine, and by how much.

    v2/tuned/DESCRIPTION/TARGET-CORES.json       what was found here
    v2/tuned/DESCRIPTION/TARGET-CORES.fetched    what a remote had, signed: see `cache/records/fetched_offer.py`

A result is for the code of an op (its description), for one target and number of cores. It has a row for each thing
that was timed: a dtype, a size, and for Triton ops a kernel. It has a canonical form, which a publisher signs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.keys import canonical
from opforge.cache.layout import Layout
from opforge.cache.records import fetched_offer
from opforge.cache.schema import KEY, NUMBER, FormatError, items, record, table, text, version, whole
from opforge.fast_path import library
from opforge.foundation import file_owners, formats, settings
from opforge.foundation.files import folder_names, make_folder, write_file

FOLDER, RESULT, FETCHED = "tuned", ".json", ".fetched"
MAX_BYTES, MAX_ROWS, MAX_OTHERS, MAX_NAMES = 64 << 10, 512, 256, 8
MAX_FILE_BYTES = 4 * MAX_BYTES
"""Of a fetched result, which stands in a text with its signatures."""
NEAREST = 8
"""A result counts for calls that are at most so many times larger or smaller than what was timed."""
MAX_SIZE = (1 << 62) // NEAREST
"""A library compares sizes of calls in 64 bits."""
REPLACES = 0.98
"""A config replaces the default if the interval of its time, as a part of the default's, lies below this."""
DTYPES = {
    "any": -1,
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "bfloat16": 15,
}
"""The names of dtypes -> the numbers by which libraries know them: torch's. "any" is for calls of all dtypes."""
CONFIG = table(whole(-(1 << 62), (1 << 62) - 1), text(r"[A-Za-z_]\w{0,63}", "a name"), MAX_NAMES)
"""The values of a config; empty for the default."""
LINE = text(r"[ -~]{0,200}", "at most 200 printable characters")
TIMED = {"config": CONFIG, "ratio": NUMBER, "low": NUMBER, "high": NUMBER, "why": LINE}
ROW = record(
    {
        "what": LINE,
        "dtype": schema.choice(*DTYPES),
        "size": whole(1, MAX_SIZE),
        **TIMED,
        "rounds": whole(0, 100_000),
        "others": items(record(TIMED), MAX_OTHERS),
    }
)
"""The result at one dtype and size: the config to take, its time as a part of the default's with the interval of
95 %, why it is the default if it is, and the configs that were not taken."""
FIELDS = {
    "format": version(formats.TUNED),
    "op": text(r"[^\W\d]\w*", "a name"),
    "kernel": KEY,
    "target": text(r"[a-z0-9_]+(:[ -~]+)?", "a device, or a device and its architectures", 200),
    "cores": whole(0, 1 << 20),
    "rows": items(ROW, MAX_ROWS),
}
SCHEMA = record(FIELDS)


class StoredResult(NamedTuple):
    """A result's file in a store."""

    path: str
    value: Mapping[str, Any]
    problem: str = ""
    """Why it cannot be used; then `value` is empty."""

    @property
    def is_fetched(self) -> bool:
        """Whether a remote had it."""
        return self.path.endswith(FETCHED)


def stem_of(target: str, cores: int) -> str:
    """Returns the name of a result's file, without its ending."""
    return f"{target.replace(':', '-').replace('/', '-')}-{cores}"


def path_of(root: str, description: str, target: str, cores: int, ending: str = RESULT) -> str:
    """Returns where a result lies in a store or a layer."""
    return Layout(root).path(FOLDER, description, stem_of(target, cores) + ending)


def parse(data: bytes) -> dict[str, Any]:
    """Returns the result in some bytes. Raises FormatError."""
    return checked(schema.parse(data, schema.OBJECT, MAX_BYTES))


def checked(value: Any) -> dict[str, Any]:
    """Returns a result as it is. Raises FormatError if it is none, or takes a config that is not faster."""
    schema.checked(value, SCHEMA)
    seen = set[tuple[str, str, int]]()
    for row in value["rows"]:
        place = (row["what"], row["dtype"], row["size"])
        shown = f"its row for {row['what'] or row['dtype']} of {row['size']}"
        if place in seen:
            raise FormatError(f"{shown} is in it twice")
        seen.add(place)
        if not 0 < row["low"] <= row["ratio"] <= row["high"]:
            raise FormatError(f"{shown} has the ratio {row['ratio']!r}, which is not in its interval")
        if row["config"] and row["high"] >= REPLACES:
            text = f"{shown} takes a config whose interval ends at {row['high']!r}"
            raise FormatError(f"{text}: expected one below {REPLACES}, or the default")
    result: dict[str, Any] = value
    return result


def write(root: str, value: Mapping[str, Any]) -> str:
    """Writes a result into a store by one rename; returns its path. Raises OSError, FormatError if it is too large."""
    data = canonical(checked(dict(value)))
    if len(data) > MAX_BYTES:
        raise FormatError(f"it has {len(data)} bytes, and at most {MAX_BYTES} are read: time fewer sizes at once")
    parse(data)
    path = path_of(root, value["kernel"], value["target"], value["cores"])
    make_folder(os.path.dirname(path))
    write_file(path, data)
    return path


def read(path: str, owners: Collection[int], bits: int = 0) -> bytes:
    """Returns a result's file, which nobody else may have written.

    Raises OSError, FileNotFoundError if there is none, and ValueError for what must not be read. `bits` are the mode
    bits by which other users may write it.
    """
    folder = path.rpartition("/")[0]
    is_linked = os.path.islink(path) or library.folders_problem(folder, owners, bits) == library.LINKED
    if is_linked and library.may_be_linked(path):
        path, linked = library.resolved(path, owners)
        if linked:
            raise ValueError(linked)
        folder = path.rpartition("/")[0]
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is not a regular file of at most {MAX_FILE_BYTES} bytes")
        if status.st_uid not in owners:
            raise ValueError(f"it belongs to user {status.st_uid}, who is not trusted here")
        if status.st_mode & 0o022 and file_owners.others_bits(status, handle) & ~bits:
            raise ValueError(f"it can be written by others (mode {stat.S_IMODE(status.st_mode):o})")
        if unsafe := library.folders_problem(folder, owners, bits):
            raise ValueError(unsafe)
        return file.read(MAX_FILE_BYTES)


def stored(root: str, owners: Collection[int] = ()) -> Iterator[StoredResult]:
    """Yields every result in a store, in the order of their names; see `read_stored`."""
    layout = Layout(root)
    for folder in folder_names(layout.path(FOLDER)):
        for name in folder_names(layout.path(FOLDER, folder)):
            if name.endswith((RESULT, FETCHED)):
                with suppress(FileNotFoundError):  # another process has removed it
                    yield read_stored(layout.path(FOLDER, folder, name), owners)


def read_stored(path: str, owners: Collection[int] = (), bits: int = 0) -> StoredResult:
    """Returns the result in a file, or why it cannot be used. Raises FileNotFoundError if there is none.

    `owners` are by default those whose files are used in the user's own store.
    """
    try:
        data = read(path, owners or file_owners.trusted_ids(settings.trusted_owners()), bits)
        if path.endswith(FETCHED):
            offer = fetched_offer.read(path).offer
            return StoredResult(path, checked(schema.parse(offer.encode(), schema.OBJECT, MAX_FILE_BYTES).get("facts")))
        return StoredResult(path, parse(data))
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:  # the store is the placeholder for a folder that cannot be made
        raise FileNotFoundError(path) from error
    except (OSError, ValueError) as error:
        return StoredResult(path, {}, getattr(error, "strerror", None) or str(error))
