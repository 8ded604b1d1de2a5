"""Finds, reads and writes the files that are ported. Encoding, newlines, mode and owner stay as they are."""

from __future__ import annotations

import fnmatch
import io
import os
import shutil
import stat
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from opforge.errors import PortError

from .findings import CONVERTED, LEFT, Finding
from .rewriting import port_text

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
MAX_BYTES = 8 << 20
"""No module that a person wrote is larger. Its parsed form takes some thousand times its size in memory."""


class PortedFile(NamedTuple):
    """One file before and after porting. `problem` says why it could not be ported; the file is then unchanged."""

    path: str
    findings: list[Finding]
    """With their places in the original text."""
    remaining: list[Finding]
    """Findings that remain or need a review, with their places in the converted text."""
    before: str = ""
    text: str = ""
    problem: str = ""

    @property
    def changes(self) -> int:
        """The number of places that are converted."""
        return sum(finding.kind == CONVERTED for finding in self.findings)

    @property
    def left(self) -> int:
        """The number of vendor references that are left to a person."""
        return sum(finding.kind == LEFT for finding in self.findings)


def python_files(paths: Sequence[str], exclude: Sequence[str] = ()) -> Iterator[str]:
    """Yields the Python files among the paths and in folders among them, each once, in order.

    Folders that are hidden, symlinks or virtual environments are not entered. `exclude` holds patterns of paths or
    names; a path may be written as a shell completes it: `old/`, `./src/old`, `/home/me/old`. Raises PortError for a
    path that does not exist, for a notebook and for a folder that cannot be read.
    """
    seen: set[str] = set()
    patterns = [os.path.normpath(pattern) for pattern in exclude]
    for path in paths:
        if not os.path.exists(path):
            raise PortError(path, "there is no such file or folder", "Name one that exists")
        if path.endswith(".ipynb"):
            raise PortError(path, "it is a notebook", "Export it as a script: only Python files are ported")
        for file in _files_in(path, patterns) if os.path.isdir(path) else (path,):
            real_path = os.path.realpath(file)
            if real_path not in seen:
                seen.add(real_path)
                yield file


def _files_in(root: str, patterns: Sequence[str]) -> Iterator[str]:
    for folder, subfolders, names in os.walk(root, onerror=_raise_unreadable):
        subfolders[:] = sorted(
            name for name in subfolders if not _is_skipped(folder, name) and not _is_excluded(folder, name, patterns)
        )
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".py") and _is_regular_file(path) and not _is_excluded(folder, name, patterns):
                yield path


def _raise_unreadable(error: OSError) -> None:
    raise PortError(error.filename, error.strerror or str(error), "Make it readable, or exclude it") from error


def _is_regular_file(path: str) -> bool:
    """Returns whether the path is a file and no symlink. Opening a named pipe would block forever."""
    return stat.S_ISREG(os.lstat(path).st_mode)


def _is_skipped(folder: str, name: str) -> bool:
    is_hidden = name.startswith(".") or name in SKIPPED_FOLDERS
    return is_hidden or os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))


def _is_excluded(folder: str, name: str, patterns: Sequence[str]) -> bool:
    path = os.path.normpath(os.path.join(folder, name))
    forms = (name, path, os.path.relpath(path)) if patterns else ()
    # A relative pattern is not compared with the absolute path: `*/old/*` is not about the folders above.
    return any(
        fnmatch.fnmatch(form, pattern)
        for pattern in patterns
        for form in (*forms, *((os.path.abspath(path),) if os.path.isabs(pattern) else ()))
    )


def port_file(path: str, write: bool) -> PortedFile:
    """Ports one file, and writes it back if `write` is true. A failure is returned as the result's `problem`."""
    try:
        stamp, content = _read(path)
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        before = content.decode(encoding)
        ported = port_text(before, path)
        if write and ported.text != before:
            _replace(os.path.realpath(path), ported.text.encode(encoding), stamp)
    except (SyntaxError, UnicodeError, LookupError) as error:
        failure = PortError(path, f"its encoding cannot be read ({error})", "Save it as UTF-8, or exclude it")
        return PortedFile(path, [], [], problem=str(failure))
    except OSError as error:
        failure = PortError(path, error.strerror or str(error), "Make it readable and writable")
        return PortedFile(path, [], [], problem=str(failure))
    except PortError as error:
        return PortedFile(path, [], [], problem=str(error))
    return PortedFile(path, ported.findings, ported.remaining, before, ported.text)


def _read(path: str) -> tuple[os.stat_result, bytes]:
    """Returns the status and the content of a regular file. Raises OSError, or PortError for anything else."""
    # Without O_NONBLOCK a pipe would block for ever, and a device such as /dev/zero has no end.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PortError(path, "it is not a regular file", "Name a Python file or a folder")
        if status.st_size > MAX_BYTES:
            problem = f"it has {status.st_size} bytes, and at most {MAX_BYTES} are read"
            raise PortError(path, problem, "Exclude the file, or split it")
        return status, file.read(MAX_BYTES)


def _replace(path: str, content: bytes, stamp: os.stat_result) -> None:
    """Replaces the file by one rename. Raises PortError if it is not writable or has changed since it was read."""
    if not os.access(path, os.W_OK):
        raise PortError(path, "it is not writable", "Change its mode, or exclude it")
    folder, name = os.path.split(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
    try:
        with open(handle, "wb") as file:
            file.write(content)
        with suppress(OSError):  # if root ports a file, it must keep its owner
            os.chown(temporary, stamp.st_uid, stamp.st_gid)
        shutil.copymode(path, temporary)
        now = os.stat(path)
        if (now.st_mtime_ns, now.st_size, now.st_ino) != (stamp.st_mtime_ns, stamp.st_size, stamp.st_ino):
            raise PortError(path, "it was changed while it was being ported", "Run the command again")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
