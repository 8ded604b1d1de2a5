"""Triton: the kernels that it compiles itself, the timings of its autotuner, and its library for the host.

Kernels are code for the GPU. The host library, through which Triton calls the driver, is code for the processor: it is
of an adapter of its own, so that a key for kernels cannot bring it. Without it a machine without a C compiler cannot
use a kernel at all.

Triton's key of a kernel has all that decides it: source, target, options, Triton. The key of the host library has the
library's source, and what `file` on PATH says of Python: with and without that program the keys differ. So it is
replaced by the platform while a scope is open; Triton, Python and the C library are in the fingerprint.

TRITON_CACHE_MANAGER=opforge.jits.triton_cache:StoreCache begins the scope of OPFORGE_WARM in processes that do not
import opforge, such as workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .adapter import Adapter

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

    from .triton_cache import StoreCache

    cache = triton.knobs.cache
    if not _before:
        _before.append(cache.manager_class)
        cache.manager_class = StoreCache

    def end() -> None:
        if _before and not (KERNELS.active or HOST.active):
            if (before := _before.pop()) is None:
                del cache.manager_class
            else:
                cache.manager_class = before

    return end
