"""Triton's cache manager that keeps its files in the open scopes of `opforge.warm`. Importing it imports Triton."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from triton.runtime.cache import CacheManager, FileCacheManager

from . import adapter
from .adapter import Adapter
from .page import Files

HOST, KERNELS = "triton-host", "triton"

TIMINGS = ".autotune.json"
"""The ending of the files in which Triton's autotuner keeps its timings."""


class StoreCache(CacheManager):  # type: ignore[misc]
    """Triton's cache manager for the files of one key. Dumps and overrides stay in Triton's own folders."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._key, self._claim = key, ExitStack()
        self._is_plain, self._options = override or dump, {"override": override, "dump": dump}
        self._made = dict[str, bytes]()

    def get_file(self, filename: str) -> str | None:
        """Returns the path of a file that was put; None if there is none. Timings are a group of one file."""
        own = self._own(filename)
        if own is None:
            path: str | None = self._triton().get_file(filename)
            return path
        if own.name == HOST or filename.endswith(TIMINGS):
            return (self._find(own, filename) or {}).get(filename)
        made = {name: content for name, content in self._made.items() if name == filename}
        return own.entries.lay(self._key, made).get(filename)

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Keeps a file, and returns its path."""
        own = self._own(filename)
        if own is None:
            path: str = self._triton().put(data, filename, binary)
            return path
        self._made[filename] = data if isinstance(data, bytes) else str(data).encode()
        files = {filename: self._made[filename]}
        if own.name == HOST or filename.endswith(TIMINGS):
            self._finish(own, filename, files)
        return own.entries.lay(self._key, files)[filename]

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Returns the paths of a kernel's files by name; None if it must be compiled."""
        own = self._own(filename)
        if own is None:
            group: dict[str, str] | None = self._triton().get_group(filename)
            return group
        return self._find(own, filename)

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        """Finishes a kernel: `get_group` returns these files from now on."""
        own = self._own(filename)
        if own is None:
            path: str = self._triton().put_group(filename, group)
            return path
        files = dict[str, bytes]()
        for name, written in group.items():
            with open(written, "rb") as file:
                files[name] = file.read()
        self._finish(own, filename, files)
        return group[filename]

    def _own(self, filename: str) -> Adapter | None:
        """Returns the adapter that a file is of; None if it is kept where Triton keeps it."""
        suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
        own = adapter.at(adapter.BUILT_IN[HOST if filename.endswith(suffix) else KERNELS])
        return own if own.active and not self._is_plain else None

    def _triton(self) -> FileCacheManager:
        return FileCacheManager(self._key, **self._options)

    def _find(self, own: Adapter, filename: str) -> dict[str, str] | None:
        key = f"{self._key}/{filename}"
        files = own.entries.get_or_claim(key, _what(own, filename), self._claim)
        return None if files is None else own.entries.lay(key, files)

    def _finish(self, own: Adapter, filename: str, files: Files) -> None:
        with self._claim:
            own.entries.put(f"{self._key}/{filename}", _what(own, filename), files)


def _what(own: Adapter, filename: str) -> str:
    if own.name == HOST:
        return f"Triton's host library {filename.partition('.')[0]}"
    if filename.endswith(TIMINGS):
        return f"the timings of {filename.removesuffix(TIMINGS)}"
    return f"the Triton kernel {filename.removesuffix('.json')}"
