"""The root metadata that this user trusts for a registry. Whoever has one accepts no index without TUF's signatures."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from opforge import limit_settings, settings
from opforge import trust as owners
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.files import UNREADABLE, make_folder, read_file, read_json, write_file
from opforge.errors import TrustFileError
from opforge.remote.stores.urls import spelled

from . import MAX_BYTES

FILE = "trusted-root.json"
SEEN = "timestamp.json"
"""Where python-tuf keeps the newest timestamp."""
LOCK = "lock"


def folder_of(url: str) -> str:
    """Returns the folder with what is known of a registry: the trusted root, and the newest metadata that was seen."""
    name = hashlib.sha256(spelled(url).encode()).hexdigest()[:32]
    return os.path.join(settings.config_dir(), "tuf", name)


def read(url: str) -> bytes | None:
    """Returns the trusted root metadata of a registry; None if none was trusted. Raises TrustFileError."""
    folder = folder_of(url)
    path = os.path.join(folder, FILE)
    if not os.path.lexists(path):
        return None
    # Whoever can change it decides what is installed.
    problem = owners.folder_problem(folder, owners.trusted_ids(settings.trusted_owners()))
    if problem:
        raise TrustFileError(path, *problem)
    try:
        data = read_file(path, MAX_BYTES)
        _require_root(data)
        return data
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or f"it is damaged ({error})"
        raise TrustFileError(path, reason, "Trust the registry's root metadata again: opforge tuf trust") from error


def trust(url: str, data: bytes, is_next: bool = False) -> str:
    """Trusts root metadata for a registry; returns the file.

    What was seen of the registry before is forgotten, unless the root `is_next`: it follows from the one that is
    trusted, and older metadata must not pass for new by that. Raises TrustFileError, LockTimeoutError.
    """
    folder = folder_of(url)
    path = os.path.join(folder, FILE)
    try:
        _require_root(data)
        make_folder(folder)
        with held(url):  # another process may be reading
            # First: without this file the registry would be read unprotected.
            write_file(path, data)
            if not is_next:
                _forget(folder)
    except (ValueError, KeyError, TypeError) as error:
        advice = "Get the file from the registry's owner, not from the registry"
        raise TrustFileError(path, "what was given is no root metadata", advice) from error
    except OSError as error:
        raise unwritable(url, error) from error
    return path


def _require_root(data: bytes) -> None:
    """Raises ValueError, KeyError or TypeError for what is no root metadata. TUF is not needed for that."""
    role = json.loads(data)["signed"]["_type"]
    if role != "root":
        raise ValueError(f"'_type' is {ascii(role)[:40]}, expected 'root'")


def unwritable(url: str, error: OSError) -> TrustFileError:
    """Returns the error for a folder in which nothing can be kept of a registry."""
    path = os.path.join(folder_of(url), FILE)
    return TrustFileError(path, f"its folder cannot be written ({error.strerror})", "Change it as its owner")


def _forget(folder: str) -> None:
    """Removes all but the trusted root and the lock."""
    import shutil

    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif name not in (FILE, LOCK):
            os.unlink(path)


@contextmanager
def held(url: str) -> Iterator[None]:
    """Holds what is kept of a registry for this process: python-tuf replaces its link to the newest root in two steps.

    Raises LockTimeoutError, OSError.
    """
    path = f"{folder_of(url)}/{LOCK}"
    with lock.hold(path, f"the TUF metadata of {url}", limit_settings.lock_timeout()):
        yield


def seen(url: str) -> int:
    """Returns the version of the newest timestamp that this user has verified or signed; 0 if none is known."""
    try:
        return int(read_json(os.path.join(folder_of(url), SEEN))["signed"]["version"])
    except UNREADABLE:
        return 0


def note(url: str, timestamp: bytes) -> None:
    """Keeps a timestamp that this user has signed: an older one is not signed again. A read-only folder keeps none."""
    folder = folder_of(url)
    try:
        if os.path.isdir(folder):
            write_file(os.path.join(folder, SEEN), timestamp)
    except OSError:
        return  # in CI, where nothing is kept between two jobs
