"""Object files by the unit that they were compiled from: after an edit of one source of ten, one is compiled.

    v2/objects/UNIT/DIGEST.o       the object file, named by its own digest
    v2/objects/UNIT/DIGEST.json    what it was compiled from, and a digest of that, of UNIT and of DIGEST

UNIT is the key of a compilation's command. As with entries, the files that it read decide whether it is still valid.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from opforge.cache import schema
from opforge.cache.keys import key_of
from opforge.cache.layout import Layout
from opforge.cache.ownership import is_own
from opforge.foundation.files import folder_names, make_folder, renew, temp_path, write_file

from . import size_log, validity
from .inputs import Inputs
from .schemas import OBJECT_FILE

CHUNK = 1 << 20
MAX_OBJECT_BYTES = 2 << 30
"""A larger object is compiled again."""
RENEW_SECONDS = 24 * 3600.0
"""How long after a noted use of an object the next one is noted."""
KEPT = 8
"""How many objects a unit keeps: those that were used last."""


def reuse(layout: Layout, unit: str, seen: validity.Observation, target: str) -> Inputs | None:
    """Copies an object whose inputs are unchanged to `target`; returns what it was compiled from, or None.

    `seen` is shared by the units of one build, so that each file is hashed once.
    """
    folder = layout.path("objects", unit)
    for name in filter(lambda name: name.endswith(".json"), folder_names(folder)):
        try:
            record = schema.read(os.path.join(folder, name), OBJECT_FILE)
            if record["key"] != key_of([unit, name[:-5], record["inputs"]]):
                continue  # another object's record in this one's place would give the object for other sources
            inputs = Inputs.from_json(record["inputs"])
            if seen.problem(record["inputs"]) or not inputs.files:  # a record that names no file would hold for ever
                continue
            digest, _size = _copy(os.path.join(folder, name[:-5] + ".o"), target)
        except (OSError, ValueError):
            continue
        if digest != name[:-5]:
            os.unlink(target)
        else:
            renew(os.path.join(folder, name), RENEW_SECONDS)
            renew(folder, RENEW_SECONDS)
            return inputs
    return None


def keep(layout: Layout, unit: str, path: str, inputs: Inputs, most: int = KEPT) -> None:
    """Stores a unit's object file, and removes all but `most`, those that were used last.

    If that fails, the next build compiles the unit again.
    """
    folder = layout.path("objects", unit)
    try:
        make_folder(folder)
        temporary = temp_path(os.path.join(folder, "object"))
        digest, size = _copy(path, temporary)
        fields = inputs.to_json()
        name = os.path.join(folder, digest)
        record = json.dumps({"key": key_of([unit, digest, fields]), "inputs": fields}).encode()
        os.replace(temporary, name + ".o")
        write_file(name + ".json", record)
        size_log.append(layout, size + len(record))
        _remove(_records(layout, folder)[:-most])
    except (OSError, ValueError):
        _remove(_records(layout, folder))


def _copy(source: str, target: str) -> tuple[str, int]:
    """Copies a file in pieces: an object may hold a model's weights. Returns its SHA-256 and its bytes.

    Raises OSError, and ValueError for what opforge cannot have written.
    """
    handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_OBJECT_BYTES:
            raise ValueError(f"{source} is not an object file of at most {MAX_OBJECT_BYTES} bytes")
        digest, size = hashlib.sha256(), 0
        new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(new, "wb") as copy:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    size += copy.write(chunk)
        except OSError:  # of a full disk: a part of an object is none
            os.unlink(target)
            raise
    return digest.hexdigest(), size


def _records(layout: Layout, folder: str) -> list[str]:
    """Returns the paths of a unit's records, those that were used last at the end."""
    try:
        paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")]
        return sorted((path for path in paths if is_own(layout, path)), key=lambda path: os.stat(path).st_mtime_ns)
    except OSError:
        return []


def _remove(records: Sequence[str]) -> None:
    """Removes these records with their objects. Without its record an object is not used."""
    for record in records:
        for path in (record, record[:-5] + ".o"):
            with suppress(OSError):
                os.unlink(path)
