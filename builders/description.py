"""What an op is, before any compiler is chosen: enough to find a prebuilt one."""

from __future__ import annotations

from typing import NamedTuple

from opforge.cache.keys import key_of

FORMAT = 1


class OpDescription(NamedTuple):
    """An op as its builder declares it, for one target. Two equal descriptions are served by the same binary."""

    op: str
    version: str
    abi: str
    target: str
    torch_target: str
    flags: tuple[str, ...]
    defines: tuple[tuple[str, str], ...]
    libraries: tuple[str, ...]
    sources: tuple[tuple[str, str, str], ...]
    """(root, path, SHA-256) of each of the op's own sources."""
    requires: tuple[tuple[str, str], ...]
    """What the ABI ties the binary to: torch and Python, for the `torch` ABI."""

    @property
    def key(self) -> str:
        """The key under which a prebuilt entry of this description is found."""
        return key_of([FORMAT, self._asdict()])
