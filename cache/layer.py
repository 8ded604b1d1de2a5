"""Fills a layer: a folder of entries that other users can read, for an image, a wheel or a shared folder.

A layer holds entries, each with its record alone, and the descriptions under which they are found. Every user may read
it, and only its owner may write it.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Collection

from opforge.cache.admit import admit
from opforge.cache.layout import Layout
from opforge.cache.ownership import is_own_name
from opforge.cache.records.entry import is_intact, record_text
from opforge.errors import CacheDirError
from opforge.fast_path.library import RECORD, Entry, is_record
from opforge.foundation import settings
from opforge.foundation.file_owners import folder_problem, link_problem
from opforge.foundation.files import MAX_RECORD_BYTES, is_temp_name, make_folder, open_regular, read_json, temp_path

TEMP_FOLDER_SECONDS = 3600.0
"""A temporary folder that is older was left by a process that was killed while it copied."""


def add(folder: str, entry: Entry, description: str, owners: Collection[int], synced: bool = True) -> Entry:
    """Copies an entry into the layer `folder`, which is made if it is missing; returns the entry in the layer.

    It is found there by the key `description`. An intact entry that the layer has already is left alone. If
    not `synced`, a crash of the machine may leave it damaged: then it is refused when it is loaded. Raises
    CacheDirError if the folder cannot be written.
    """
    layer = Layout(os.path.abspath(folder))
    try:
        for name, key in (("description", description), ("key", entry.key)):  # they become parts of paths
            if key in ("", ".", "..") or "/" in key:
                raise ValueError(f"{name!r} of its record is {key!a}, expected 32 hex digits")
        _refuse_planted(layer, description, owners)
        for path in (layer.path("entries"), layer.description(description)):
            _make_folder(path, layer.root)
        _sweep(layer.path("entries"))
        temporary = temp_path(layer.entry(entry.key))
        try:
            _copy(entry, temporary)
            if os.environ.get("SOURCE_DATE_EPOCH"):  # as for every tool of packagers: the same bytes from each build
                _forget_duration(os.path.join(temporary, RECORD))
            added, _is_new = admit(layer, temporary, owners, description, synced=synced)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except ValueError as error:
        raise CacheDirError(entry.folder, f"it cannot be copied: {error}", "Build the op again") from error
    except CacheDirError:
        raise
    except OSError as error:
        raise CacheDirError(layer.root, f"it cannot be written ({error.strerror})", "Choose another folder") from error
    return added._replace(origin=entry.origin)


def _refuse_planted(layer: Layout, description: str, owners: Collection[int]) -> None:
    """Raises CacheDirError if somebody else could change what is put into the layer.

    A layer is trusted by its owner, who may be another user: a container fills the folder of a user of the host.
    """
    if os.path.isdir(layer.root):
        owners = {*owners, os.stat(layer.root).st_uid}
    for path in (layer.path("entries"), layer.description(description)):
        problem = folder_problem(path, owners, shared=settings.trusted_folders()) or link_problem(layer.path())
        if problem:
            raise CacheDirError(layer.root, *problem)


def _sweep(entries: str) -> None:
    """Removes the temporary folders of processes that were killed while they copied."""
    for name in os.listdir(entries):
        if not (is_temp_name(name) and is_own_name("entries", name.partition(".")[0])):
            continue
        path = os.path.join(entries, name)
        try:
            status = os.lstat(path)
        except OSError:
            continue  # its process has just published or removed it
        if stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime > TEMP_FOLDER_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _copy(entry: Entry, folder: str) -> None:
    """Copies an entry's library and its record into a new folder.

    Until the entry is published nobody else may open these files: with a descriptor from before the modes are set, a
    member of the group could change the library after it was checked.
    """
    make_folder(folder)
    for name, max_bytes in ((entry.record["file"], entry.record["size"]), (RECORD, MAX_RECORD_BYTES)):
        target = os.path.join(folder, name)
        with open_regular(os.path.join(entry.folder, name)) as original:
            if os.fstat(original.fileno()).st_size > max_bytes:
                raise ValueError(f"its {name} has more than {max_bytes} bytes")
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as copy:
                shutil.copyfileobj(original, copy)


def _forget_duration(path: str) -> None:
    """Sets the seconds of the build in a record to 0. A damaged record is left alone: it is refused later."""
    record = read_json(path)
    if is_record(record) and is_intact(record):
        with open(path, "wb") as file:
            file.write(record_text({**record, "seconds": 0.0}))


def _make_folder(path: str, root: str) -> None:
    """Makes a folder of the layer; makes it and its parents, from `root` down, readable for every user.

    The folders above `root` are not opforge's. Those that are missing can be written by nobody else: with a umask of
    002 a group could change the layer, and nothing would be loaded from it.
    """
    if not os.path.isdir(os.path.dirname(root)):
        make_folder(os.path.dirname(root), 0o755)
    make_folder(path)  # with mode 0700: whatever the umask, nobody else can put a file there meanwhile
    while len(path) >= len(root):
        _set_mode(path, 0o755)
        path = os.path.dirname(path)


def _set_mode(path: str, mode: int) -> None:
    """Sets a mode whatever the umask. A mode that is right already is not set: the file may be another user's."""
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)
