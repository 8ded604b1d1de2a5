"""Triton: the kernels that it compiles itself, the timings of its autotuner, and its library for the host.

Kernels are code for the GPU. The host library, through which Triton calls the driver, is code for the processor: it is
of an adapter of its own, so that a key for kernels cannot bring it. Without it a machine without a C compiler cannot
use a kernel at all.

Triton's key of a kernel has all that decides it: source, target, options, Triton. The key of the host library has the
library's source, and what `file` on PATH says of Python: with and without that program the keys differ. So it is
replaced by the platform while a scope is open; Triton, Python and the C library are in the fingerprint.

TRITON_CACHE_MANAGER=opforge.jits.triton:StoreCache begins the scope of OPFORGE_WARMED in processes that do not import
opforge, such as workers.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from triton.runtime.cache import CacheManager, FileCacheManager

from .adapter import Adapter
from .page import Files

TIMINGS = ".autotune.json"
"""How the files end in which Triton's autotuner keeps what it has timed."""
VERSIONS = ("3.7", "3.8", "3.9")


class Kernels(Adapter):
    """Kernels and timings."""

    name, module, package, versions, holds = "triton", "triton", "triton", VERSIONS, "gpu"
    carries = r"\w[^/\0]{0,250}\.(?:json|source|ttir|ttgir|llir|ptx|cubin|amdgcn|hsaco|spv|zebin|sass)"

    def install(self) -> Callable[[], object]:
        """Makes Triton ask for its files here."""
        return _install_manager()


class HostLibrary(Adapter):
    """The library of C by which Triton calls the driver."""

    name, module, package, versions, holds = "triton-host", "triton", "triton", VERSIONS, "host"
    carries = r"\w{1,100}\.[\w.-]{1,100}\.so"

    def features(self) -> tuple[str, ...]:
        """Returns nothing: Triton passes no -march, so any processor of the platform runs it."""
        return ()

    def install(self) -> Callable[[], object]:
        """Makes Triton ask for its library here, by a key that is the same wherever the platform is."""
        from triton.runtime import build

        changed = {"platform_key": lambda: f"opforge,{sys.platform},{os.uname().machine}"}
        if hasattr(build, "_get_cache_manager"):
            changed["_get_cache_manager"] = _without_own_folders(build._get_cache_manager)
        before = {name: getattr(build, name) for name in changed}
        vars(build).update(changed)
        undo = _install_manager()

        def end() -> None:
            vars(build).update(before)
            undo()

        return end


KERNELS, HOST = Kernels(), HostLibrary()


def _without_own_folders(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Triton 3.9's choice of a key without the paths of Triton's own headers, and of the libraries to link.

    Triton's version stands for its headers; the driver is found again by its name when the library is loaded.
    """
    import triton

    root = os.path.join(os.path.dirname(os.path.realpath(triton.__file__)), "")

    def manager(src: bytes, config: Mapping[str, list[str] | None]) -> Any:
        named = {**config, "library_dirs": None}
        named["include_dirs"] = [path.removeprefix(root) for path in config.get("include_dirs") or ()]
        return original(src, named)

    return manager


_before = list[Any]()
"""Triton's own cache manager, while `StoreCache` is in its place."""


def _install_manager() -> Callable[[], object]:
    import triton

    cache = triton.knobs.cache
    if not _before:
        _before.append(cache.manager_class)
        cache.manager_class = StoreCache

    def end() -> None:
        if _before and not (KERNELS.active or HOST.active):
            before = _before.pop()
            if before is None:
                del cache.manager_class
            else:
                cache.manager_class = before

    return end


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
        if own is HOST or filename.endswith(TIMINGS):
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
        if own is HOST or filename.endswith(TIMINGS):
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
        own: Adapter = HOST if filename.endswith(suffix) else KERNELS
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
    if own is HOST:
        return f"Triton's host library {filename.partition('.')[0]}"
    if filename.endswith(TIMINGS):
        return f"the timings of {filename.removesuffix(TIMINGS)}"
    return f"the Triton kernel {filename.removesuffix('.json')}"
