"""Folders for this user alone, removed when the process ends: for entries, the caches of torch and the folders of JITs.

Such a folder holds the files that a scope has found and compiled, and no others. A JIT's own folder is not used: the
JIT loads files from there whoever made them. So verified code would run again after its key was revoked, and in a scope
of another name.
"""

from __future__ import annotations

import atexit
import os

from opforge.cache import staging
from opforge.cache.current_store import remove_temporary, temporary_folder, writable_store
from opforge.cache.held import for_others
from opforge.errors import CacheDirError

_made: dict[str, tuple[str, int]] = {}
"""The folders, each with its name and the process that made it."""


def new(key: str) -> str:
    """Makes a folder that this user alone can read, and returns its path. Raises OSError.

    It is removed when the process ends, and not before: threads may compile, and torch knows files by their paths.
    A folder in the store is swept after a kill. Where nothing can be written there, it is a temporary one.
    """
    try:
        path = staging.new_folder(writable_store().layout, key)
    except (CacheDirError, OSError):
        return for_others(temporary())
    _made[path] = path, os.getpid()
    return for_others(path)  # compilers are started with it


def temporary() -> str:
    """Makes a temporary folder for this user alone that is removed when the process ends. Raises OSError."""
    root, path = temporary_folder("opforge-")
    _made[root] = path, os.getpid()
    return root


@atexit.register
def _remove() -> None:
    for root, (path, process) in _made.items():
        if process == os.getpid():  # a forked child leaves its parent's
            remove_temporary(root, path)
