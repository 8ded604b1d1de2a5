"""Folders and whole files as the store writes and reads them."""

from __future__ import annotations

import json
import os
from typing import Any

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError)
"""What reading a file that others may have written to, and taking it for what it should be, can raise."""
json.loads(b"{}")  # the first one sets the parser up, in the time of twenty more: not when an op is loaded


def make_folder(path: str) -> None:
    """Make a folder and its parents for this user alone, whatever the umask."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):  # makedirs gives its mode to the last folder only
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise


def write_file(path: str, data: bytes) -> None:
    """Put a whole file in place at once, readable by this user alone. Nobody ever sees half of it."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_json(path: str) -> Any:
    """What a file of this store says. Raises OSError, ValueError or RecursionError; a pipe in its place keeps nobody.

    Four calls to the system: a file object makes nine, which a hit would notice.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(handle, os.fstat(handle).st_size)
    finally:
        os.close(handle)
    return json.loads(data)


def size_of(folder: str) -> int:
    """The bytes of all files below a folder."""
    found = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            try:
                found += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue  # it is being removed
    return found
