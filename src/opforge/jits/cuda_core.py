"""cuda.core: programs that it compiles, given through its own interface of caches.

    program.compile("cubin", cache=opforge.jits.cuda_core.program_cache())

cuda.core has no place where a cache could be set for all programs. Its key has source, options and NVRTC's version;
what it cannot know, such as headers of an include path, it refuses itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from .adapter import Adapter

FILE = "code"


class CudaCore(Adapter):
    """Keeps what `ProgramCache` is given."""

    name, module, package, versions, holds, carries = "cuda-core", "cuda.core", "cuda-core", ("1.2",), "gpu", FILE

    def install(self) -> Callable[[], object]:
        """Changes nothing: a program names its cache."""
        return lambda: None


CUDA_CORE = CudaCore()


def program_cache() -> Any:
    """Returns a cache for `cuda.core.Program.compile`: the entries of the scope that is open, nothing without one."""
    return _cache_class()()


@cache
def _cache_class() -> Any:
    """Returns the class of caches. It is made here, so that cuda.core is not imported before it is used."""
    interface = import_module("cuda.core.utils").ProgramCacheResource

    class ProgramCache(interface):  # type: ignore[misc, valid-type]
        """A cache for `cuda.core.Program.compile`: the entries of the scope that is open, and nothing without one."""

        def __getitem__(self, key: bytes | str) -> bytes:
            """Returns the code of a key. Raises KeyError, and CompileForbiddenError where nothing may be compiled."""
            found = None
            if CUDA_CORE.active:
                found = CUDA_CORE.entries.get(_name(key))
                if found is None:
                    CUDA_CORE.entries.check_allowed("a program of cuda.core")
            if found is None:
                raise KeyError(key)
            return found[FILE]

        def __setitem__(self, key: bytes | str, value: Any) -> None:
            """Keeps code under a key."""
            if CUDA_CORE.active:
                code = bytes(value.code if hasattr(value, "code") else value)
                CUDA_CORE.entries.put(_name(key), "a program of cuda.core", {FILE: code})

        def __delitem__(self, key: bytes | str) -> None:
            """Does nothing: `opforge rm` removes pages."""

        def __len__(self) -> int:
            """Returns how many programs there are."""
            return len(CUDA_CORE.entries.all_keys()) if CUDA_CORE.active else 0

        def clear(self) -> None:
            """Does nothing: `opforge rm` removes pages."""

    return ProgramCache


def _name(key: bytes | str) -> str:
    return (key.encode() if isinstance(key, str) else bytes(key)).hex()
