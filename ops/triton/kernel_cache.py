"""Triton's own cache, kept in opforge's store: for the kernels that a program gives to Triton itself.

    v1/triton/KEY/             what Triton made of one kernel, under the names that it gave; KEY is Triton's
    v1/triton/KEY/__grp__NAME  which of those belong together: names and digests, so that the store can be moved

Triton is told of it by `opforge.triton_cache()`, or by
TRITON_CACHE_MANAGER=opforge.ops.triton.kernel_cache:StoreCache.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import ExitStack
from typing import Any

from triton.runtime.cache import CacheManager, FileCacheManager

from opforge import settings
from opforge.cache.current import writable_store
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.files import make_folder, write_file
from opforge.cache.keys import bytes_digest
from opforge.cache.layout import Layout
from opforge.cache.maintenance import limits
from opforge.cache.records import size_log
from opforge.errors import LockTimeoutError

PATIENCE_SECONDS = 60.0
"""How long to wait for another process that compiles the same kernel; then it is compiled here too."""
AREA = "triton"
log = logging.getLogger("opforge.cache")


def install() -> str:
    """Make Triton keep its kernels in the current store, in this process and those that it starts; returns the folder.

    Raises CacheDirError.
    """
    import triton

    layout = writable_store().layout
    triton.knobs.cache.manager_class = StoreCache
    os.environ["TRITON_CACHE_MANAGER"] = f"{__name__}:{StoreCache.__name__}"
    return layout.path(AREA)


class StoreCache(CacheManager):  # type: ignore[misc]
    """What Triton asks for one kernel's files. Dumps and overrides stay where Triton puts them."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._elsewhere = FileCacheManager(key, override=override, dump=dump) if override or dump else None
        self._key = key
        self._layout: Layout = writable_store().layout
        self._folder = self._layout.path(AREA, key)
        self._held = ExitStack()

    def get_file(self, filename: str) -> str | None:
        """The path of a file that was put, or None."""
        if self._elsewhere:
            found: str | None = self._elsewhere.get_file(filename)
            return found
        path = os.path.join(self._folder, filename)
        return path if os.path.exists(path) else None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Keep a file, whole or not at all; returns its path."""
        if self._elsewhere:
            kept: str = self._elsewhere.put(data, filename, binary)
            return kept
        path = os.path.join(self._folder, filename)
        content = data if isinstance(data, bytes) else str(data).encode()
        make_folder(self._folder)
        write_file(path, content)
        size_log.append(self._layout, len(content))
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of a finished kernel by name, or None where it must be compiled.

        Of several processes that miss one kernel, one compiles, and the others wait for it: see PATIENCE_SECONDS.
        """
        if self._elsewhere:
            group: dict[str, str] | None = self._elsewhere.get_group(filename)
            return group
        found = self._read(filename)
        if found is None:
            try:
                self._held.enter_context(lock.acquire(self._lock_path(), filename, PATIENCE_SECONDS))
            except LockTimeoutError as error:
                log.warning("%s It is compiled here meanwhile.", error)
            found = self._read(filename)  # another may have finished it since
            if found is not None:
                self._held.close()
        return found

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Finish a kernel: from now on `get_group` gives these files. Returns the path of the list."""
        if self._elsewhere:
            listed: str = self._elsewhere.put_group(filename, group)
            return listed
        try:
            told = {}
            for name, path in group.items():
                with open(path, "rb") as file:
                    told[name] = bytes_digest(file.read())
            paths = {name: os.path.basename(path) for name, path in group.items()}
            place = self.put(json.dumps({"child_paths": paths, "digests": told}), f"__grp__{filename}")
        finally:
            self._held.close()
        limits.enforce(self._layout, settings.cache_max_size(), settings.cache_max_age())
        return place

    def _lock_path(self) -> str:
        return self._layout.path("locks", f"triton-{self._key}")

    def _read(self, filename: str) -> dict[str, str] | None:
        """The files that the list names, if each is there and is what it was."""
        try:
            with open(os.path.join(self._folder, f"__grp__{filename}"), "rb") as file:
                told = json.load(file)
            paths = {name: os.path.join(self._folder, base) for name, base in told["child_paths"].items()}
            for name, path in paths.items():
                with open(path, "rb") as file:
                    if os.path.dirname(path) != self._folder or bytes_digest(file.read()) != told["digests"][name]:
                        return None
            os.utime(self._folder)  # the least recently used go first, and what was just asked for stays
            return paths
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
