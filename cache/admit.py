"""The one way into a store: builds, layers and fetched entries are checked here, and published by one rename."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import Any

from opforge.errors import CacheDirError
from opforge.fast_path.library import BUILD, RECORD, Entry, integrity_problem
from opforge.foundation.files import is_temp_name, make_folder, write_file

from . import schema, staging
from .filesystem.disk import digest_of
from .keys import key_of
from .layout import Layout, entry_name
from .ownership import is_own_name
from .records import schemas
from .records.entry import BY_VARIABLES, RECORD_KEY, damage_of
from .records.inputs import Inputs
from .records.pins import pinned
from .schema import FormatError, Schema

OF_ONE_BUILD = ("seconds", "description", "built_with_torch", "user_flags", RECORD_KEY)
"""The fields of a record in which two builds of one entry may differ."""
FETCHED_ONLY = "it was fetched, and a build records more"
"""Why an entry is replaced that was fetched from a remote: what it was built from is not beside it."""
OUTDATED = "it was built from the same files, and other names were in the searched folders then"
"""Why an entry is replaced that is not damaged: a header has appeared that shadows none."""
MAX_NAMES = 8
"""How many of an entry's files a message names."""
KEPT_POINTERS = 16
"""How many entries a plan keeps: so many states of its sources can be returned to without a build."""


def admit(
    layout: Layout,
    folder: str,
    owners: Collection[int],
    layer_description: str = "",
    fetched: tuple[str, bytes] | None = None,
    synced: bool = True,
    sha256: str = "",
) -> tuple[Entry, bool]:
    """Checks a finished folder and makes it an entry; returns it, and whether it is new.

    An entry that the store has already is used instead, if it is intact; otherwise it is quarantined. Nothing that is
    published is ever written to again.

    Args:
        layout: The store or the layer.
        folder: Holds the library, its record and, unless the entry is for a layer, how it was built.
        owners: The user ids that the files may belong to.
        layer_description: For a layer, the key of the description by which the entry is found there; it may differ from
            that of the builder that built it. Every user may read the entry.
        fetched: For what a remote offered: the key of the description that it was offered for, and what is kept of the
            offer. The entry is found by this description alone, and by no plan.
        synced: Whether the files are on the disk before the entry is there.
        sha256: The library's digest, if the caller took it while it wrote the file. Then a new entry is not read back:
            the look-up that finds it does that before it is loaded.

    Raises:
        ValueError: Something in the folder is wrong; the text says what.
        CacheDirError: The store does not read back what was written, or an entry in it cannot be changed.
        OSError: The store cannot be written.
    """
    record = checked_record(folder, owners, sha256=sha256)
    key = entry_name(record["key"], record["sha256"])
    _set_modes(folder, record["file"], bool(layer_description))
    names = os.listdir(folder)
    for _attempt in range(3):
        is_new = staging.publish(layout, folder, key, synced)
        entry = Entry(key, layout.entry(key), record, "built" if is_new else "cache")
        problem = None if is_new and sha256 else integrity_problem(entry, owners, full=True)
        if not problem and not is_new:
            problem = _difference(entry, names, owners)
        if not problem:
            if fetched:
                _point_to_fetched(layout, entry, *fetched)
            else:
                _point(layout, entry, layer_description)
            return entry, is_new
        is_damaged, in_layer = problem not in (OUTDATED, FETCHED_ONLY), bool(layer_description)
        if not staging.quarantine(layout, key, problem, is_damaged, in_layer):
            raise CacheDirError(
                layout.root,
                f"{layout.entry(key)} cannot be changed ({problem})",
                "Set OPFORGE_CACHE_DIR to a folder of your own: files of another user cannot be trusted",
            )
        if is_new:
            break
    raise CacheDirError(
        layout.root,
        f"an entry that was just written cannot be read back ({problem})",
        "Check the disk, or set OPFORGE_CACHE_DIR to another",
    )


def checked_record(folder: str, owners: Collection[int], name: str = "", sha256: str = "") -> dict[str, Any]:
    """Returns the record of an entry's folder after checking everything in it, and that it may be called `name`.

    `sha256` is the library's digest if it is known. Raises ValueError, OSError.
    """
    record = _read(folder, RECORD, schemas.RECORD)
    if damage := damage_of(record):
        raise ValueError(f"its {RECORD} is damaged: {damage}")
    names = set(os.listdir(folder))
    if names - {BUILD} != {RECORD, record["file"]}:
        found = ", ".join(ascii(name)[1:-1] for name in sorted(names)[:MAX_NAMES])
        raise ValueError(f"it holds {found}: expected {RECORD}, {BUILD} and {record['file']} alone")
    if name and name != entry_name(record["key"], record["sha256"]):
        own = entry_name(record["key"], record["sha256"])
        raise ValueError(f"its record describes another entry: {own}, expected {name}")
    if BUILD in names:
        _check_build(record, _read(folder, BUILD, schemas.BUILD))
    if problem := _library_problem(os.path.join(folder, record["file"]), record, owners, sha256):
        raise ValueError(problem)
    return dict(record)


def _read(folder: str, name: str, declared: Schema) -> Any:
    """Returns the value in a file of an entry. Raises OSError, or FormatError that names the file."""
    try:
        return schema.read(os.path.join(folder, name), declared)
    except FormatError as error:
        raise FormatError(f"its {name} cannot be used: {error}") from error


def _check_build(record: dict[str, Any], build: Any) -> None:
    """Raises ValueError if how the entry was built does not belong to its record."""
    inputs = Inputs.from_json(build["inputs"])
    if record["inputs_key"] != (actual := key_of(inputs.to_json())):
        stated = record["inputs_key"]
        problem = f"the key of 'inputs' is {actual}, and 'inputs_key' there is {stated}"
        raise ValueError(f"its {BUILD} is not of its {RECORD}: {problem}")
    if record["key"] != (actual := inputs.result_key(record["plan"])):
        problem = f"'plan' and the inputs there give the key {actual}, and 'key' is {record['key']}"
        raise ValueError(f"its {RECORD} is not of its {BUILD}: {problem}")


def _library_problem(path: str, record: dict[str, Any], owners: Collection[int], sha256: str) -> str | None:
    """Returns the problem of a library, before it is published; None if it has none. Reads it through one descriptor.

    `sha256` is its digest if that is known.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in owners:
            return "the library must be a regular file owned by you"
        if status.st_size != record["size"]:
            return f"the library has {status.st_size} bytes instead of {record['size']}"
        if (sha256 or digest_of(handle)) != record["sha256"]:
            return "the library's digest differs from its record's"
        return None
    finally:
        os.close(handle)


def _set_modes(folder: str, library: str, is_layer: bool) -> None:
    """Sets the modes whatever the umask. Until now nobody else could open the files."""
    for name in os.listdir(folder):
        private, shared = (0o500, 0o555) if name == library else (0o600, 0o644)
        os.chmod(os.path.join(folder, name), shared if is_layer else private)
    os.chmod(folder, 0o755 if is_layer else 0o700)


def _difference(entry: Entry, names: Collection[str], owners: Collection[int]) -> str | None:
    """Returns why an entry that was there already cannot stand for the one that was to be published, or None.

    `names` are the files of the latter.
    """
    try:
        stored = checked_record(entry.folder, owners, entry.key)
        files = set(os.listdir(entry.folder))
        if files | {BUILD} != {*names, BUILD}:
            return "it has other files"
        if BUILD in {*names} - files:
            return FETCHED_ONLY
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    # Two builders of one plan may name the op's folders otherwise, and have other torches with the same headers.
    own, theirs = ({**record, **dict.fromkeys(OF_ONE_BUILD)} for record in (entry.record, stored))
    fields = sorted(name for name in {*own, *theirs} if own.get(name) != theirs.get(name))
    if fields and {*fields} <= {"inputs", "inputs_key", BY_VARIABLES} and _key_of_inputs(own) == _key_of_inputs(theirs):
        return OUTDATED
    return f"its record differs in {', '.join(fields)}" if fields else None


def _key_of_inputs(record: dict[str, Any]) -> str:
    """Returns a key of those inputs that are in the result key: the files and the answers."""
    return Inputs.from_json(record["inputs"]).result_key("")


def _point(layout: Layout, entry: Entry, layer_description: str) -> None:
    """Makes the entry the one that its plan and its description name.

    Another library with the same key was built from the same inputs: it is not found any more.
    """
    plan = layout.plan(entry.record["plan"])
    description = layout.description(layer_description or entry.record["description"])
    for folder in (description,) if layer_description else (description, plan):
        _write_pointer(folder, entry.key, 0o644 if layer_description else 0o600)
        names = _replace_others(folder, entry)
    if not layer_description and len(names) > KEPT_POINTERS:
        kept = pinned(layout)
        paths = sorted((os.path.join(plan, name) for name in names if name not in kept), key=_time)
        for path in paths[:-KEPT_POINTERS]:
            _remove(path)


def _point_to_fetched(layout: Layout, entry: Entry, description: str, note: bytes) -> None:
    """Makes the entry one that its description finds whatever compiler is here; `note` says where it came from."""
    folder = layout.fetched(description)
    _write_pointer(folder, entry.key, 0o600, note)
    _replace_others(folder, entry)


def _replace_others(folder: str, entry: Entry) -> list[str]:
    """Removes the pointers to other libraries with the entry's key. Returns the names of all pointers in the folder.

    What another process is writing there has the name of none.
    """
    names = [name for name in os.listdir(folder) if is_own_name("entries", name) and not is_temp_name(name)]
    for name in names:
        if name != entry.key and name.startswith(entry.record["key"]):
            _remove(os.path.join(folder, name))
    return names


def _time(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0


def _write_pointer(folder: str, name: str, mode: int, content: bytes = b"") -> None:
    for is_last in (False, False, True):
        make_folder(folder)
        try:
            write_file(os.path.join(folder, name), content)
            os.chmod(os.path.join(folder, name), mode)
        except FileNotFoundError:
            if is_last:
                raise
            continue  # an eviction has just removed the folder, which was empty
        break


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
