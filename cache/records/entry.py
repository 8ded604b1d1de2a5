"""An entry: one built library with its record, immutable once published, checked each time before it is used.

    entries/KEY-DIGITS/OP-....so      KEY is the result key, DIGITS are the first of the library's SHA-256
    entries/KEY-DIGITS/record.json    what the library is and needs, and the op's own files: a few kilobytes
    entries/KEY-DIGITS/build.json     the plan, every file that was read, and what the build printed

Choosing an entry and loading it read the record alone. What is shipped, in a layer or a wheel, has no build.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache.keys import KEY_LENGTH, bytes_digest, canonical, key_of
from opforge.cache.layout import entry_name
from opforge.fast_path.library import RECORD, is_record
from opforge.foundation.environment import variable
from opforge.foundation.files import MAX_RECORD_BYTES, read_file
from opforge.foundation.remembered_values import ABSENT, FlatStamps, PathStamp

RECORD_KEY = "record_key"
BY_VARIABLES = "by_variables"
"""The field of a record with the headers that variables such as CPATH made the compiler find outside of the op's roots:
the variables, and the inputs. It is left out if there are none."""


PACKAGES = ("/site-packages/", "/dist-packages/")
"""The folders that Python's packages are installed in."""


class Stamped(NamedTuple):
    """The stamps of an entry's inputs, as they were before the contents were compared."""

    files: tuple[PathStamp, ...]
    """The files that are checked one by one: those in no trusted tree."""
    others: tuple[PathStamp, ...]
    """The folders in which a header could appear, and the stamp file of each trusted tree."""
    variables: tuple[tuple[str, str], ...] = ()
    """The environment variables whose values are a part of the library, with these values."""

    @property
    def watched(self) -> FlatStamps:
        """The inputs that a process which has loaded the entry compares again: all but those of installed packages.

        What the system's packages add to its folders changes the stamp of their database too, which is in `others`.
        """
        others = [(path, stamp) for path, stamp in self.others if not is_systems(path)]
        return FlatStamps.of(file for file in (*self.files, *others) if not any(name in file[0] for name in PACKAGES))

    @property
    def is_complete(self) -> bool:
        """Whether all of them exist: a tree without its stamp file is not trusted."""
        return all(stamp != ABSENT for _path, stamp in (*self.files, *self.others))


def is_systems(folder: str) -> bool:
    """Returns whether a folder is one that the system's packages are installed in."""
    parts = folder.strip("/").split("/")
    return parts[0] == "usr" and parts[1:2] != ["local"]


def read_record(folder: str) -> dict[str, Any] | None:
    """Returns the record in an entry's folder, or None if there is no valid one.

    A record names its entry: one that lies in another entry's folder is not valid there. Raises OSError, ValueError.
    """
    text = read_file(os.path.join(folder, RECORD), MAX_RECORD_BYTES)
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{RECORD} is nested too deeply") from error
    is_own = is_record(record) and entry_name(record["key"], record["sha256"]) == os.path.basename(folder)
    return record if is_own and (_is_as_written(text, record) or is_intact(record)) else None


def compared_inputs(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the inputs that a look-up compares: the op's own, and what variables led to if they are the same now."""
    inputs = [record["inputs"]]
    if found := record.get(BY_VARIABLES):
        is_same = all(variable(name) == value for name, value in found["variables"].items())
        inputs += [found["inputs"]] if is_same else []
    return inputs


def record_text(record: Mapping[str, Any]) -> bytes:
    """Returns the content of a record's file: the record with its key, in canonical form."""
    return canonical(with_record_key(record))


def _is_as_written(text: bytes, record: Mapping[str, Any]) -> bool:
    """Returns whether this is what `record_text` returned, by a digest: `is_intact` has to write the record again."""
    stated = str(record.get(RECORD_KEY))
    rest = text.replace(f'"{RECORD_KEY}":"{stated}",'.encode(), b"", 1)
    return bytes_digest(rest)[:KEY_LENGTH] == stated


def with_record_key(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with the key of all its other fields, so that a lost or damaged field is noticed."""
    fields = {name: value for name, value in record.items() if name != RECORD_KEY}
    return {**fields, RECORD_KEY: key_of(fields)}


def is_intact(record: Mapping[str, Any]) -> bool:
    """Returns whether the fields of a record are those that it was written with."""
    return with_record_key(record) == record


def damage_of(record: Mapping[str, Any]) -> str:
    """Returns how a record with all its fields differs from what was written, or an empty text."""
    stated, actual = record[RECORD_KEY], with_record_key(record)[RECORD_KEY]
    return f"{RECORD_KEY!r} is {stated}, and the key of the other fields is {actual}" if stated != actual else ""
