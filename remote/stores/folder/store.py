"""The store of a folder. Objects appear by link(2); an object is replaced by rename(2) under its lock."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from operator import attrgetter
from typing import BinaryIO

from opforge.errors import StoreError
from opforge.foundation.files import fsync
from opforge.remote.stores.protocol import (
    LOCK_SUFFIX,
    MAX_NAME_CHARACTERS,
    PART,
    ListedObject,
    ObjectStore,
    StoredObject,
    check_name,
    check_prefix,
)
from opforge.remote.stores.urls import OPENING, split

from . import lock, tree

MAX_LISTED = 5_000_000
MAX_DEPTH = 16
PORTION = 1000
"""So many names of a folder are sorted at a time: a listing of any length begins at once."""
_REASONS = {
    errno.ENOSPC: ("the disk is full", "Free some space"),
    errno.EDQUOT: ("the quota is used up", "Free some space"),
    errno.EFBIG: ("the file is larger than this process may write", "Raise the limit: ulimit -f"),
    errno.EROFS: ("the file system is read-only", "Publish from a machine that may write to it"),
    errno.EACCES: ("permission denied", "Ask the folder's owner for access, or fix the modes of its files"),
    errno.EPERM: (
        "operation not permitted",
        "The file system must have hard links. If others publish here too, no folder has the sticky bit: chmod -R -t",
    ),
    errno.EOPNOTSUPP: ("the file system has no hard links", "Use another file system"),
    errno.ELOOP: (
        "there is a symbolic link in the path",
        "Replace the link: none is followed below the store's folder",
    ),
    errno.ENOTDIR: ("a part of the path is a link or no folder", "Remove it: no link is followed below the folder"),
    errno.EINVAL: ("it is not a regular file", "Remove the file or folder in its place"),
}
_MISSING = "Check the URL, and that the file system is mounted; for a new store make that folder first"


def open_url(url: str) -> FolderStore:
    """Returns the store of file:///PATH. Raises StoreError."""
    parts = split(url, ())
    if parts.host not in ("", "localhost") or parts.port is not None:
        raise StoreError(parts.text, OPENING, f"it names the host {parts.host!r}", "Write file:///PATH")
    if not parts.path.startswith("/") or "\0" in parts.path:
        raise StoreError(parts.text, OPENING, "its path is not absolute", "Write file:///PATH")
    return FolderStore(parts.text, parts.path)


class FolderStore(ObjectStore):
    """Objects as files of a folder, which must exist. Everything below it is read and written by anyone who may."""

    def __init__(self, url: str, path: str, void_seconds: float = lock.VOID_SECONDS) -> None:
        self.url, self.path, self.void_seconds = url, path, void_seconds

    def __repr__(self) -> str:
        return f"FolderStore({self.url!r})"

    def get(self, name: str, limit: int) -> StoredObject | None:
        folders, leaf = _split(check_name(self.url, name))
        with self._errors(f"get {name}"):
            try:
                with tree.folder(self.path, folders) as parent:
                    handle, status = tree.open_file(parent, leaf)
            except FileNotFoundError:
                return None
            data = self._read(handle, status, name, limit)
        return StoredObject(data, _version(data))

    def _read(self, handle: int, status: os.stat_result, name: str, limit: int) -> bytes:
        """Returns the content of an open file, and closes it. Raises StoreError if it is too long, OSError."""
        try:
            data = os.read(handle, status.st_size + 1) if status.st_size <= limit else b""
            while status.st_size < len(data) <= limit or 0 < len(data) < status.st_size:
                chunk = os.read(handle, tree.CHUNK)  # it grew meanwhile, or it has more than one call returns
                data += chunk
                if not chunk:
                    break
        finally:
            os.close(handle)
        if status.st_size > limit or len(data) > limit:
            reason = f"it has {status.st_size} bytes, more than the {limit} that are allowed"
            raise StoreError(self.url, f"get {name}", reason, "Remove it: opforge has not written it")
        return data

    def exists(self, name: str) -> bool:
        folders, leaf = _split(check_name(self.url, name))
        with self._errors(f"look at {name}"):
            try:
                with tree.folder(self.path, folders) as parent:
                    return _exists(parent, leaf)
            except FileNotFoundError:
                return False

    def download(self, name: str, file: BinaryIO, size: int) -> None:
        folders, leaf = _split(check_name(self.url, name))
        with self._errors(f"download {name}"):
            with tree.folder(self.path, folders) as parent:
                handle, status = tree.open_file(parent, leaf)
            left = size
            with os.fdopen(handle, "rb") as source:
                while status.st_size == size and left and (chunk := source.read(min(left, tree.CHUNK))):
                    file.write(chunk)
                    left -= len(chunk)
        if left or status.st_size != size:
            reason = f"it has {status.st_size} bytes, and {size} were expected"
            raise StoreError(self.url, f"download {name}", reason, "Remove that file, and publish again")

    def put_if_absent(self, name: str, data: bytes | BinaryIO) -> bool:
        folders, leaf = _split(check_name(self.url, name))
        with self._errors(f"put {name}"), tree.folder(self.path, folders, make=True) as parent:
            if _exists(parent, leaf):
                return False  # nothing is written to find that out
            with tree.staged(self.path, data) as staging:
                is_new = tree.link(staging, parent, leaf)
                fsync(parent)  # otherwise a crash could lose a blob, and keep the offer that names it
            return is_new

    def put_if_unchanged(self, name: str, data: bytes, version: str) -> bool:
        folders, leaf = _split(check_name(self.url, name))
        with self._errors(f"put {name}"):
            try:
                with tree.folder(self.path, folders) as parent, tree.staged(self.path, data) as staging:
                    result = None
                    while result is None:
                        with lock.hold(self.path, parent, leaf, self.void_seconds) as held:
                            result = self._replace(held, staging, leaf, data, version)
                    return result
            except FileNotFoundError:
                return False

    def _replace(
        self, held: lock.FolderLock, staging: tuple[int, str], leaf: str, data: bytes, version: str
    ) -> bool | None:
        """Returns whether the object was replaced; None if the lock was lost before."""
        if _version_of(held.parent, leaf) != version:
            return False
        if not held.is_held():
            return None
        incoming, source = staging
        os.rename(source, leaf, src_dir_fd=incoming, dst_dir_fd=held.parent)
        fsync(held.parent)
        return _version_of(held.parent, leaf) == _version(data)

    def list(self, prefix: str, but: Container[str] = ()) -> Iterator[ListedObject]:
        for name, entry in self._entries(prefix, but):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it was deleted meanwhile
            yield ListedObject(name, status.st_size, status.st_mtime)

    def names(self, prefix: str) -> Iterator[str]:
        for name, _entry in self._entries(prefix, ()):
            yield name

    def _entries(self, prefix: str, but: Container[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
        folders, start = _split(check_prefix(self.url, prefix))
        with self._errors(f"list {prefix}"):
            count = 0
            try:
                with tree.folder(self.path, folders) as parent:
                    for found in _walk(parent, "".join(f"{part}/" for part in folders), start, but):
                        count += 1
                        if count > MAX_LISTED:
                            raise OSError(errno.EOVERFLOW, f"there are more than {MAX_LISTED} objects")
                        yield found
            except FileNotFoundError:
                return

    def read_each(self, names: Iterable[str], limit: int) -> Iterator[tuple[str, bytes]]:
        with ExitStack() as stack:
            last, parent = None, -1  # a path is not resolved for each file of a folder
            for name in names:
                path, _slash, leaf = check_name(self.url, name).rpartition("/")
                try:
                    if path != last:
                        stack.close()
                        last, parent = (
                            None,
                            stack.enter_context(tree.folder(self.path, path.split("/") if path else ())),
                        )
                        last = path
                    data = self._read(*tree.open_file(parent, leaf), name, limit)
                except FileNotFoundError:
                    continue
                except (OSError, tree.NoRootError):
                    with self._errors(f"get {name}"):
                        raise
                yield name, data

    def delete(self, name: str) -> None:
        folders, leaf = _split(check_name(self.url, name))
        with self._errors(f"delete {name}"):
            try:
                with tree.folder(self.path, folders) as parent:
                    os.unlink(leaf, dir_fd=parent)
            except FileNotFoundError:
                return

    @contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        """Raises StoreError in the place of what the operating system says."""
        try:
            yield
        except tree.NoRootError as error:
            cause = error.__cause__
            missing = isinstance(cause, FileNotFoundError)
            reason = "the folder does not exist" if missing else f"the folder cannot be opened ({_words(cause)})"
            raise StoreError(self.url, operation, reason, _MISSING) from cause
        except lock.LockWaitError as error:
            hint = "Try again when fewer processes publish"
            raise StoreError(self.url, operation, f"other processes kept its lock, at last {error}", hint) from None
        except OSError as error:
            reason, hint = _REASONS.get(error.errno or 0, (_words(error), "Check the folder and its file system"))
            raise StoreError(self.url, operation, reason, hint) from error


def _words(error: BaseException | None) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def _split(name: str) -> tuple[list[str], str]:
    *folders, leaf = name.split("/")
    return folders, leaf


def _version(data: bytes) -> str:
    return f"{len(data)}-{hashlib.sha256(data).hexdigest()}"


def _version_of(parent: int, leaf: str) -> str:
    """Returns the version of a file; "" if there is none."""
    try:
        handle, status = tree.open_file(parent, leaf)
    except FileNotFoundError:
        return ""
    digest = hashlib.sha256()
    try:
        while chunk := os.read(handle, tree.CHUNK):
            digest.update(chunk)
    finally:
        os.close(handle)
    return f"{status.st_size}-{digest.hexdigest()}"


def _exists(parent: int, leaf: str) -> bool:
    try:
        os.stat(leaf, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _walk(
    parent: int, path: str, start: str, but: Container[str], depth: int = MAX_DEPTH
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields the files below a folder whose first part begins with `start`. Links are left out."""
    with os.scandir(parent) as entries:
        while portion := sorted(islice(entries, PORTION), key=_name_of):
            for entry in portion:
                part = entry.name
                name = path + part
                if name in but or not part.startswith(start) or not _is_part(part) or part.endswith(LOCK_SUFFIX):
                    continue
                with suppress(FileNotFoundError):  # it was deleted meanwhile
                    if entry.is_file(follow_symlinks=False):
                        if len(name) <= MAX_NAME_CHARACTERS:
                            yield name, entry
                    elif entry.is_dir(follow_symlinks=False) and depth:
                        child = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                        try:
                            yield from _walk(child, name + "/", "", but, depth - 1)
                        finally:
                            os.close(child)


_name_of, _is_part = attrgetter("name"), re.compile(PART).fullmatch
