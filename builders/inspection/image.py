"""A piece of device code in a file."""

from __future__ import annotations

from typing import Any, NamedTuple

from .reader import Reader


class Image(NamedTuple):
    """A piece of device code. `code` is None if it could not be read."""

    kind: str
    """SASS, PTX or HSACO."""
    arch: str
    size: int
    """The size in the file, in bytes."""
    code: Reader | None
    compression: str = ""
    is_bare: bool = False
    """Whether it is a file in no container: then a letter of a SASS architecture (sm_90a) is nowhere."""
    name: str = ""
    """The name by which a Triton op's library launches it."""

    def to_json(self) -> dict[str, Any]:
        """Returns everything but the code."""
        known = {"kind": self.kind, "arch": self.arch, "size": self.size, "compression": self.compression}
        return known | {"bare": self.is_bare}
