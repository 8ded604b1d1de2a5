"""Triton's own cache, kept in opforge's store: for the kernels that Triton compiles and times itself.

What lies there is described in `cache/records/triton.py`. What this machine lacks is asked for in the remotes.

`opforge.triton_cache()` makes Triton use it, or TRITON_CACHE_MANAGER=opforge.ops.triton.kernel_cache:StoreCache.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from triton.runtime.cache import CacheManager, FileCacheManager

from opforge import memory, settings, upper_parts
from opforge.cache.current import writable_store
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.files import renew
from opforge.cache.keys import bytes_digest
from opforge.cache.maintenance import limits
from opforge.cache.records import fetched, size_log
from opforge.cache.records import triton as records
from opforge.cache.records.triton import AREA, FETCHED, TIMINGS, Kernel
from opforge.errors import LockTimeoutError
from opforge.machine_folder import make_folder, write_file

SOURCE = "fetched Triton kernels"
"""What fetches kernels and verifies them again, in the table of upper parts."""
COMPILE_WAIT_SECONDS = 60.0
"""How long to wait for another process that makes the same. After that, this process makes it too."""
RENEW_SECONDS = 3600.0
"""How long after a noted use of a kernel the next one is noted: those that were used last are evicted last."""
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
    """Triton's cache manager for the files of one key. Dumps and overrides stay in Triton's own folders."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._triton_manager = FileCacheManager(key, override=override, dump=dump) if override or dump else None
        self._key = key
        self._store = writable_store()
        self._layout = self._store.layout
        self._folder = records.folder_of(self._layout, key)
        self._lock = ExitStack()

    def get_file(self, filename: str) -> str | None:
        """Returns the path of a file that was put; None if there is none. Timings are a group of one file."""
        if self._triton_manager:
            triton_path: str | None = self._triton_manager.get_file(filename)
            return triton_path
        if filename.endswith(TIMINGS):
            return (self.get_group(filename) or {}).get(filename)
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
        if filename.endswith(TIMINGS):
            with self._lock:
                self._finish(filename, {filename: bytes_digest(content)}, _of_this_process())
            self._enforce_limits()
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Returns the paths of a finished kernel's files by name; None if the kernel must be compiled.

        If several processes need the same kernel, one asks the remotes for it, or compiles it. The others wait at most
        COMPILE_WAIT_SECONDS. What is here and cannot be used costs a warning.
        """
        if self._triton_manager:
            group: dict[str, str] | None = self._triton_manager.get_group(filename)
            return group
        paths, _problem = self._look(filename)
        if paths is None:
            try:
                self._lock.enter_context(lock.acquire(self._lock_path(), filename, COMPILE_WAIT_SECONDS))
            except LockTimeoutError as error:
                log.warning("%s It is made here meanwhile.", error)
            paths, problem = self._look(filename)  # another process may have finished it by now
            if problem:
                log.warning("%s: what is in %s is not used: %s", records.name_of(filename), self._folder, problem)
            if paths is None and settings.remotes():
                upper_parts.get(SOURCE).bring(self._store, self._key, filename)
                paths, _problem = self._look(filename)
            if paths is not None:
                self._lock.close()
        return paths

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        """Finishes a kernel: `get_group` returns these files from now on. Returns the path of their list."""
        if self._triton_manager:
            triton_path: str = self._triton_manager.put_group(filename, group)
            return triton_path
        with self._lock:
            digests = {}
            for path in group.values():
                with open(path, "rb") as file:
                    digests[os.path.basename(path)] = bytes_digest(file.read())
            self._finish(filename, digests, _of_metadata(group[filename]))
        self._enforce_limits()
        return os.path.join(self._folder, records.RECORD)

    def _finish(self, filename: str, digests: Mapping[str, str], made_by: Mapping[str, str]) -> None:
        """Writes down what the files are, so that they are used from now on."""
        name = records.name_of(filename)
        try:
            records.write(self._folder, {"name": name, **made_by}, digests)
        except ValueError as error:  # a name that is no file's
            log.warning("%s: what Triton made is not kept: %s", name, error)
            return
        # After that: otherwise what was fetched, and is perhaps not trusted any more, would pass for this one.
        note = os.path.join(self._folder, FETCHED)
        if os.path.lexists(note):
            os.unlink(note)

    def _enforce_limits(self) -> None:
        limits.enforce(self._layout, settings.cache_max_size(), settings.cache_max_age())

    def _lock_path(self) -> str:
        return self._layout.path("locks", f"triton-{self._key}")

    def _look(self, filename: str) -> tuple[dict[str, str] | None, str]:
        """Returns the paths of the files if they are here and may be used; otherwise None, and why they must not."""
        try:
            kernel = records.read(self._folder, self._store.owners)
            problem = _trust_problem(kernel) if kernel.is_fetched else ""
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
        if problem or filename not in kernel.record["files"]:
            return None, problem
        if renew(self._folder, RENEW_SECONDS):
            limits.enforce_settings(self._layout)
        return {name: os.path.join(self._folder, name) for name in kernel.record["files"]}, ""


def _trust_problem(kernel: Kernel) -> str:
    """Returns why what was fetched must not be used now; empty if it may. Raises OSError, ValueError.

    It was verified when it was fetched. If the trust file has changed since, it is verified again.
    """
    note = fetched.read(os.path.join(kernel.folder, FETCHED))
    if list(note.trust) == memory.stamps_of([settings.trust_file()]):
        return ""
    problem: str = upper_parts.get(SOURCE).verify_again(kernel)
    return problem


def _of_metadata(path: str) -> dict[str, str]:
    """Returns which Triton compiled a kernel, and what for, by what Triton wrote."""
    with open(path, "rb") as file:
        metadata = json.load(file)
    target = metadata.get("target", {})  # both are shown, and decide nothing
    name = f"{target.get('backend', '')}:{target.get('arch', '')}"
    return {"triton": metadata.get("triton_version", ""), "target": name}


def _of_this_process() -> dict[str, str]:
    """Returns which Triton this process has, and the GPU that it times on."""
    import triton

    target = triton.runtime.driver.active.get_current_target()
    return {"triton": triton.__version__, "target": f"{target.backend}:{target.arch}"}
