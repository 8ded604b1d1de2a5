"""What an op is, before any compiler is chosen: enough to find a prebuilt one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of

from . import abi as abis
from . import kernel_roots

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder

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


def describe(builder: OpBuilder, mode_flags: Sequence[str]) -> OpDescription:
    """The builder's description. Reads its own sources; raises SourceNotFoundError where one is missing."""
    disk, places, target = Disk(), builder.places(), builder.target
    located = kernel_roots.locate(builder.name, builder.sources, builder.search_roots())
    return OpDescription(
        op=builder.name,
        version=builder.version,
        abi=builder.abi,
        # One library may hold code for many devices: what it holds is its record's to tell.
        target=str(target) if target.device == "cpu" else target.device,
        torch_target=builder.torch_target if builder.abi == abis.STABLE else "",
        flags=(
            *builder.cxx_flags,
            *mode_flags,
            *(f"link {flag}" for flag in builder.link_flags),
            *(f"{target.device} {flag}" for flag in builder.device_flags.get(target.device, ())),
        ),
        defines=tuple(sorted(builder.defines.items())),
        libraries=tuple(builder.libraries),
        sources=tuple((*one, disk.digest(os.path.join(places[one.root], one.path)) or "") for one in located),
        requires=abis.part(builder.abi, builder.name, builder.name, builder.torch_target).requires,
    )
