"""Triton's own cache, kept in opforge's store: for the kernels that Triton compiles itself.

    v2/triton/KEY/             the files of one kernel, under Triton's names; KEY is Triton's key
    v2/triton/KEY/__grp__NAME  which of them belong together: names and digests, so that the store can be moved

`opforge.triton_cache()` makes Triton use it, or TRITON_CACHE_MANAGER=opforge.ops.triton.kernel_cache:StoreCache.
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
from opforge.cache.filesystem.files import renew
from opforge.cache.keys import bytes_digest
from opforge.cache.layout import Layout
from opforge.cache.maintenance import limits
from opforge.cache.records import size_log
from opforge.errors import LockTimeoutError
from opforge.machine_folder import make_folder, write_file

COMPILE_WAIT_SECONDS = 60.0
"""How long to wait for another process that compiles the same kernel. After that, this process compiles it too."""
RENEW_SECONDS = 3600.0
"""How long after a noted use of a kernel the next one is noted: those that were used last are evicted last."""
AREA = "triton"
"""The folder below the store's version folder."""
log = logging.getLogger("opforge.cache")


def install() -> str:
    """Makes Triton keep its kernels in the current store, and returns their folder.

    This applies to this process and to those that it starts. Raises CacheDirError.
    """
    import triton

    layout = writable_store().layout
    triton.knobs.cache.manager_class = StoreCache
    os.environ["TRITON_CACHE_MANAGER"] = f"{__name__}:{StoreCache.__name__}"
    return layout.path(AREA)


class StoreCache(CacheManager):  # type: ignore[misc]
    """Triton's cache manager for the files of one kernel. Dumps and overrides stay in Triton's own folders."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._triton_manager = FileCacheManager(key, override=override, dump=dump) if override or dump else None
        self._key = key
        self._layout: Layout = writable_store().layout
        self._folder = self._layout.path(AREA, key)
        self._lock = ExitStack()

    def get_file(self, filename: str) -> str | None:
        """Returns the path of a file that was put; None if there is none."""
        if self._triton_manager:
            triton_path: str | None = self._triton_manager.get_file(filename)
            return triton_path
        path = os.path.join(self._folder, filename)
        return path if os.path.exists(path) else None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Stores a file atomically, and returns its path."""
        if self._triton_manager:
            triton_path: str = self._triton_manager.put(data, filename, binary)
            return triton_path
        path = os.path.join(self._folder, filename)
        content = data if isinstance(data, bytes) else str(data).encode()
        make_folder(self._folder)
        write_file(path, content)
        size_log.append(self._layout, len(content))
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Returns the paths of a finished kernel's files by name; None if the kernel must be compiled.

        If several processes need the same kernel, one compiles it, and the others wait at most COMPILE_WAIT_SECONDS.
        """
        if self._triton_manager:
            group: dict[str, str] | None = self._triton_manager.get_group(filename)
            return group
        paths = self._read(filename)
        if paths is None:
            try:
                self._lock.enter_context(lock.acquire(self._lock_path(), filename, COMPILE_WAIT_SECONDS))
            except LockTimeoutError as error:
                log.warning("%s The kernel is compiled here meanwhile.", error)
            paths = self._read(filename)  # another process may have finished it by now
            if paths is not None:
                self._lock.close()
        return paths

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Finishes a kernel: `get_group` returns these files from now on. Returns the path of the list."""
        if self._triton_manager:
            triton_path: str = self._triton_manager.put_group(filename, group)
            return triton_path
        try:
            digests = {}
            for name, path in group.items():
                with open(path, "rb") as file:
                    digests[name] = bytes_digest(file.read())
            names = {name: os.path.basename(path) for name, path in group.items()}
            list_path = self.put(json.dumps({"child_paths": names, "digests": digests}), f"__grp__{filename}")
        finally:
            self._lock.close()
        limits.enforce(self._layout, settings.cache_max_size(), settings.cache_max_age())
        return list_path

    def _lock_path(self) -> str:
        return self._layout.path("locks", f"triton-{self._key}")

    def _read(self, filename: str) -> dict[str, str] | None:
        """Returns the paths of the files in the list; None if one of them is missing or was changed."""
        try:
            with open(os.path.join(self._folder, f"__grp__{filename}"), "rb") as file:
                group = json.load(file)
            paths = {name: os.path.join(self._folder, base) for name, base in group["child_paths"].items()}
            for name, path in paths.items():
                with open(path, "rb") as file:
                    if os.path.dirname(path) != self._folder or bytes_digest(file.read()) != group["digests"][name]:
                        return None
            if renew(self._folder, RENEW_SECONDS):
                limits.enforce_settings(self._layout)
            return paths
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
