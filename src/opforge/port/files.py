"""The files that are ported: finding them, reading them, and writing them back with all that was theirs."""

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
from .rewriting import port

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


class PortedFile(NamedTuple):
    """One file before and after. `problem` says why it could not be ported; it is then as it was."""

    path: str
    findings: list[Finding]
    """By their places in the file as it was."""
    after: list[Finding]
    """What is left or to be looked at, by its places in the converted text."""
    before: str = ""
    text: str = ""
    problem: str = ""

    @property
    def changes(self) -> int:
        """How many places are converted."""
        return sum(one.kind == CONVERTED for one in self.findings)

    @property
    def left(self) -> int:
        """How many places are tied to a vendor and left to a person."""
        return sum(one.kind == LEFT for one in self.findings)


def python_files(paths: Sequence[str], exclude: Sequence[str] = ()) -> Iterator[str]:
    """Give the Python files among the paths and below them, each once, in order.

    Folders that are hidden, symlinks or virtual environments are not entered. `exclude` holds patterns of paths or
    names. Raises PortError for a path that is not there, a notebook, and a folder that cannot be read.
    """
    seen: set[str] = set()
    for path in paths:
        if not os.path.exists(path):
            raise PortError(path, "there is no such file or folder", "Name one that exists")
        if path.endswith(".ipynb"):
            raise PortError(path, "it is a notebook", "Export it as a script: only Python files are ported")
        for found in _below(path, exclude) if os.path.isdir(path) else (path,):
            real = os.path.realpath(found)
            if real not in seen:
                seen.add(real)
                yield found


def _below(folder: str, exclude: Sequence[str]) -> Iterator[str]:
    for at, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not _is_skipped(at, name) and not _matches(at, name, exclude))
        for name in sorted(files):
            path = os.path.join(at, name)
            if name.endswith(".py") and _is_own_file(path) and not _matches(at, name, exclude):
                yield path


def _refuse(error: OSError) -> None:
    raise PortError(error.filename, error.strerror or str(error), "See that it can be read, or leave it out") from error


def _is_own_file(path: str) -> bool:
    """Whether it is a file by itself: no link, and no pipe, which would have us wait for ever."""
    return stat.S_ISREG(os.lstat(path).st_mode)


def _is_skipped(at: str, name: str) -> bool:
    hidden = name.startswith(".") or name in SKIPPED_FOLDERS
    return hidden or os.path.exists(os.path.join(at, name, "pyvenv.cfg"))


def _matches(at: str, name: str, patterns: Sequence[str]) -> bool:
    path = os.path.normpath(os.path.join(at, name))
    return any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(path, pattern) for pattern in patterns)


def port_file(path: str, write: bool) -> PortedFile:
    """Port one file, and write it back where `write` says so. What stops it is in the answer's `problem`."""
    try:
        with open(path, "rb") as file:
            stamp, content = os.fstat(file.fileno()), file.read()
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        before = content.decode(encoding)
        ported = port(before, path)
        if write and ported.text != before:
            _replace(os.path.realpath(path), ported.text.encode(encoding), stamp)
    except (SyntaxError, UnicodeError, LookupError) as error:
        problem = PortError(path, f"its encoding cannot be read ({error})", "Save it as UTF-8, or leave it out")
        return PortedFile(path, [], [], problem=str(problem))
    except OSError as error:
        problem = PortError(path, error.strerror or str(error), "See that it can be read and written")
        return PortedFile(path, [], [], problem=str(problem))
    except PortError as error:
        return PortedFile(path, [], [], problem=str(error))
    return PortedFile(path, ported.findings, ported.after, before, ported.text)


def _replace(path: str, content: bytes, stamp: os.stat_result) -> None:
    """Put the content in the file's place by one rename, unless the file has changed since it was read."""
    if not os.access(path, os.W_OK):
        raise PortError(path, "it must not be written", "Change its mode, or leave it out")
    folder, name = os.path.split(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
    try:
        with open(handle, "wb") as file:
            file.write(content)
        with suppress(OSError):  # root ports another's checkout, which is to stay his
            os.chown(temporary, stamp.st_uid, stamp.st_gid)
        shutil.copymode(path, temporary)
        now = os.stat(path)
        if (now.st_mtime_ns, now.st_size, now.st_ino) != (stamp.st_mtime_ns, stamp.st_size, stamp.st_ino):
            raise PortError(path, "it was changed while it was being ported", "Run the command again")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
