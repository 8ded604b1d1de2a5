"""What an op is, before any compiler is chosen: enough to find a prebuilt entry."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of

from . import abi, flag_paths, kernel_roots

if TYPE_CHECKING:
    from .op_spec import OpSpec

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
        """Returns the key under which a prebuilt entry of this description is found."""
        return key_of([FORMAT, self._asdict()])


def describe(spec: OpSpec) -> OpDescription:
    """Returns the spec's description. Reads the op's own sources; raises SourceNotFoundError if one is missing."""
    disk, target = Disk(), spec.target
    paths = {root.name: root.path for root in spec.roots} | {"system": "/"}
    located = kernel_roots.locate(spec.name, spec.sources, spec.roots)
    return OpDescription(
        op=spec.name,
        version=spec.version,
        abi=spec.abi,
        # One library may hold code for many devices: its record says which.
        target=str(target) if target.device == "cpu" else target.device,
        torch_target=spec.torch_target if spec.abi == abi.STABLE else "",
        flags=(
            *flag_paths.named(spec.cxx_flags, spec.roots),
            *spec.mode_flags,
            *(f"link {flag}" for flag in flag_paths.named(spec.link_flags, spec.roots)),
            *(f"{target.device} {flag}" for flag in flag_paths.named(spec.device_flags, spec.roots)),
        ),
        defines=(*spec.defines, *spec.kernels),
        libraries=spec.libraries,
        sources=tuple((*where, disk.digest(os.path.join(paths[where.root], where.path)) or "") for where in located),
        requires=abi.part(spec.abi, spec.name, spec.name, spec.torch_target).requires,
    )
