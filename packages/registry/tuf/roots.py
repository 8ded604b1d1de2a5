"""The root metadata that this user trusts for a registry. Whoever has one accepts no index without TUF's signatures."""

from __future__ import annotations

import hashlib
import json
import os

from opforge import settings
from opforge import trust as owners
from opforge.cache.filesystem.files import make_folder, read_file, write_file
from opforge.errors import TrustFileError

from . import MAX_BYTES

FILE = "trusted-root.json"


def folder_of(url: str) -> str:
    """Returns the folder with what is known of a registry: the trusted root, and the newest metadata that was seen."""
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:32]
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
        return read_file(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise TrustFileError(path, str(error), "Trust the registry's root metadata again: opforge tuf trust") from error


def trust(url: str, data: bytes) -> str:
    """Trusts root metadata for a registry; returns the file. What was seen of the registry before is forgotten.

    Raises TrustFileError.
    """
    folder = folder_of(url)
    path = os.path.join(folder, FILE)
    try:
        if json.loads(data)["signed"]["_type"] != "root":
            raise ValueError("it is no root metadata")
        make_folder(folder)
        _forget(folder)
        write_file(path, data)
    except (ValueError, KeyError, TypeError) as error:
        raise TrustFileError(
            path, str(error), "Get the file from the registry's owner, not from the registry"
        ) from error
    except OSError as error:
        raise TrustFileError(path, f"it cannot be written ({error.strerror})", "Change it as its owner") from error
    return path


def _forget(folder: str) -> None:
    import shutil

    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
