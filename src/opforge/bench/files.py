"""Writes the files of a run, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress

from opforge.errors import BenchFileError
from opforge.foundation.files import is_special


def check_writable(path: str) -> None:
    """Checks that a file can be written, before the measurement. Leaves nothing behind.

    Raises:
        BenchFileError: The path is a folder, or its folder is missing or cannot be written.
    """
    advice = "Choose a path in a folder that exists and that you can write"
    if os.path.isdir(path):
        raise BenchFileError(path, "it is a folder", advice)
    try:
        if is_special(path):
            with open(path, "ab"):
                return
        with tempfile.TemporaryFile(dir=_folder(path)):
            return
    except OSError as error:
        raise BenchFileError(path, f"it cannot be written: {error.strerror}", advice) from error


def write(path: str, text: str) -> None:
    """Writes a text file: by one rename, so that a reader never sees half of it. Raises BenchFileError."""
    try:
        if is_special(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return
        handle, temporary = tempfile.mkstemp(prefix=".opforge-bench-", dir=_folder(path))
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        advice = "Make room, or choose another path"
        raise BenchFileError(path, f"it cannot be written: {error.strerror}", advice) from error


def _folder(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))
