"""The root metadata that this user trusts. A store is known by its root's keys, whichever URL or link leads to it.

    CONFIG/tuf/ID/trusted-root.json     ID is of the keys of the root
    CONFIG/tuf/ID/urls.json             the URLs by which the store was met: there the root is required from then on
    CONFIG/tuf/ID/*                     the newest metadata that was seen, as python-tuf keeps it

Whoever trusts a root of a store accepts no package and no list of withdrawals of it without TUF's signatures.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from opforge import environment, settings
from opforge import trust as owners
from opforge.cache import schema
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.files import read_file
from opforge.cache.schema import TEXT, TEXTS, items, record, table, whole
from opforge.errors import TrustFileError
from opforge.machine_folder import make_folder, write_file
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.stores.urls import spelled

from . import FOLDER, MAX_BYTES, SIGNED_VERSION

FILE, URLS = "trusted-root.json", "urls.json"
SEEN = "timestamp.json"
"""Where python-tuf keeps the newest timestamp."""
LOCK = "lock"
_PUBLIC = record({"keyval": record({"public": TEXT}, is_open=True)}, is_open=True)
_ROLES = record({"root": record({"keyids": items(TEXT)}, is_open=True)}, is_open=True)
_SIGNED = record({"_type": TEXT, "version": whole(1), "keys": table(_PUBLIC), "roles": _ROLES}, is_open=True)
SCHEMA = record({"signed": _SIGNED}, is_open=True)
"""What is read of root metadata; the rest of it is python-tuf's."""


class Root(NamedTuple):
    """A root that this user trusts."""

    folder: str
    """What is known of the store: its root, its URLs, and the newest metadata that was seen."""
    data: bytes
    keys: str
    """The digest of the keys that sign the next root."""
    version: int
    urls: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What the store is known by."""
        return os.path.basename(self.folder)


def _folder() -> str:
    return os.path.join(environment.config_dir(), "tuf")


def known(is_lenient: bool = False) -> list[Root]:
    """Returns the roots that this user trusts.

    Raises TrustFileError if one cannot be used, whichever store it is of; `is_lenient` leaves it out.
    """
    try:
        names = sorted(os.listdir(_folder()))
    except OSError:
        return []
    roots = list[Root]()
    for name in names:
        folder = os.path.join(_folder(), name)
        if os.path.lexists(os.path.join(folder, FILE)):
            try:
                roots.append(_read(folder))
            except TrustFileError:
                if not is_lenient:
                    raise
    return roots


def _read(folder: str) -> Root:
    path = os.path.join(folder, FILE)
    # Whoever can change it decides what is installed.
    problem = owners.folder_problem(folder, owners.trusted_ids(settings.trusted_owners()))
    if problem:
        raise TrustFileError(path, *problem)
    try:
        data = read_file(path, MAX_BYTES)
        keys, version = _keys_of(data)
        return Root(folder, data, keys, version, _urls(folder))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"it is damaged ({error})"
        raise TrustFileError(path, reason, "Trust the registry's root metadata again: opforge tuf trust") from error


def _urls(folder: str) -> tuple[str, ...]:
    path = os.path.join(folder, URLS)
    return tuple(schema.read(path, TEXTS)) if os.path.lexists(path) else ()


def _keys_of(data: bytes) -> tuple[str, int]:
    """Returns the digest of the root keys in root metadata, and its version. TUF is not needed for that.

    Raises ValueError for what is no root metadata.
    """
    value = schema.parse(data, SCHEMA, MAX_BYTES)["signed"]
    if value["_type"] != "root":
        raise ValueError(f"'_type' is {ascii(value['_type'])[:40]}, expected 'root'")
    keys, signers = value["keys"], value["roles"]["root"]["keyids"]
    missing = [key for key in signers if key not in keys]
    if missing:
        raise ValueError(f"'keys' lacks {ascii(missing[0])[:80]}, which the role root names")
    publics = sorted(keys[key]["keyval"]["public"] for key in signers)
    return hashlib.sha256(json.dumps(publics).encode()).hexdigest()[:32], value["version"]


def by_url(url: str) -> Root | None:
    """Returns the root that is trusted for a URL, in any of its spellings; None if there is none. TrustFileError."""
    return next((root for root in known() if spelled(url) in root.urls), None)


def of_store(store: ObjectStore) -> Root | None:
    """Returns the trusted root of a store: by its URL, or by the keys of the root that lies in it; None without one.

    A URL that leads to a root once is not read without it again. Raises TrustFileError, StoreError.
    """
    trusted = known()
    for root in trusted:
        if spelled(store.url) in root.urls:
            return root
    for root in trusted:
        stored = store.get(f"{FOLDER}/{root.version}.root.json", MAX_BYTES)
        try:
            is_same = stored is not None and _keys_of(stored.data)[0] == root.keys
        except ValueError:
            continue  # another store's, of which no root is trusted
        if is_same:
            _add_url(root, store.url)
            return root
    return None


def identity(store: ObjectStore, root: Root | None) -> str:
    """Returns what a store is known by: its root's keys, or one spelling of its URL."""
    return f"root:{root.identity}" if root else store.url


def _add_url(root: Root, url: str) -> None:
    try:
        with held(root):
            urls = {*_read(root.folder).urls, spelled(url)}
            write_file(os.path.join(root.folder, URLS), json.dumps(sorted(urls)).encode())
    except OSError:
        return  # a folder of a site: the keys are compared each time


def trust(url: str, data: bytes, is_next: bool = False) -> str:
    """Trusts root metadata for a registry; returns the file.

    What was seen of the registry before is forgotten, unless the root `is_next`: it follows from the one that is
    trusted, and older metadata must not pass for new by that. Raises TrustFileError, LockTimeoutError.
    """
    folder = os.path.join(_folder(), "new")
    try:
        keys, version = _keys_of(data)
        trusted = known(is_lenient=True)  # one that is damaged is trusted again by this
        before = next((root for root in trusted if spelled(url) in root.urls), None)
        same = next((root for root in trusted if root.keys == keys), None)
        root = (before if is_next else None) or same
        root = root or Root(folder := os.path.join(_folder(), keys), data, keys, version, _urls(folder))
        folder = root.folder
        make_folder(folder)
        with held(root):  # another process may be reading
            # First: without these files the registry would be read unprotected.
            write_file(os.path.join(folder, FILE), data)
            write_file(os.path.join(folder, URLS), json.dumps(sorted({*root.urls, spelled(url)})).encode())
            if not is_next:
                _forget(folder)
        if before is not None and before.folder != folder:
            with held(before):
                left = sorted({*before.urls} - {spelled(url)})
                write_file(os.path.join(before.folder, URLS), json.dumps(left).encode())
    except OSError as error:
        raise unwritable(folder, error) from error
    except ValueError as error:
        advice = "Get the file from the registry's owner, not from the registry"
        raise TrustFileError(os.path.join(folder, FILE), "the file is not root metadata", advice) from error
    return os.path.join(folder, FILE)


def unwritable(folder: str, error: OSError) -> TrustFileError:
    """Returns the error for a folder in which nothing can be kept of a registry."""
    path = os.path.join(folder, FILE)
    return TrustFileError(path, f"its folder cannot be written ({error.strerror})", "Change it as its owner")


def _forget(folder: str) -> None:
    """Removes all but the trusted root, its URLs and the lock."""
    import shutil

    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif name not in (FILE, URLS, LOCK):
            os.unlink(path)


@contextmanager
def held(root: Root) -> Iterator[None]:
    """Holds what is kept of a registry for this process: python-tuf replaces its link to the newest root in two steps.

    Raises LockTimeoutError, OSError.
    """
    path = os.path.join(root.folder, LOCK)
    with lock.acquire(path, f"the TUF metadata in {root.folder}", settings.lock_timeout()):
        yield


def seen(root: Root) -> int:
    """Returns the version of the newest timestamp that this user has verified or signed; 0 if none is known."""
    try:
        return int(schema.read(os.path.join(root.folder, SEEN), SIGNED_VERSION)["signed"]["version"])
    except (OSError, ValueError):
        return 0


def note(root: Root, timestamp: bytes) -> None:
    """Keeps a timestamp that this user has signed: an older one is not signed again. A read-only folder keeps none."""
    try:
        if os.path.isdir(root.folder):
            write_file(os.path.join(root.folder, SEEN), timestamp)
    except OSError:
        return  # in CI, where nothing is kept between two jobs
