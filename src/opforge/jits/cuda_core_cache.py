"""The cache that programs of cuda.core are given. Importing it imports cuda.core."""

from __future__ import annotations

from typing import Any

from cuda.core.utils import ProgramCacheResource

from .cuda_core import CUDA_CORE, FILE


class ProgramCache(ProgramCacheResource):  # type: ignore[misc]
    """A cache for `cuda.core.Program.compile`: the entries of the scope that is open, and nothing without one."""

    def __getitem__(self, key: bytes | str) -> bytes:
        """Returns the code of a key. Raises KeyError, and CompileForbiddenError in a scope of `opforge.no_builds`."""
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


def _name(key: bytes | str) -> str:
    return (key.encode() if isinstance(key, str) else bytes(key)).hex()
