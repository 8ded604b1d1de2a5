"""The record of a fetched entry's offer, stored beside the entry: it decides whether the entry may still be loaded.

    v2/fetched/DESCRIPTION/ENTRY     JSON; its time is that of the last use

The trust file decides that. If it has changed since the signatures were verified, they are verified again.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from opforge.cache import schema
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import UNSIGNED
from opforge.foundation import formats, settings
from opforge.foundation.remembered_values import ABSENT

from .schemas import FETCHED

TRUST_CHANGED = "the trust file has changed since its signature was verified"


class FetchedOffer(NamedTuple):
    """The offer by which an entry was fetched."""

    remote: str
    """Its URL, without credentials."""
    offer: str
    """The signed bytes, as text."""
    signatures: tuple[str, ...]
    signer: str
    """The name of the key that was accepted; empty for an unsigned remote."""
    trust: tuple[int, ...] = ()
    """The stamp of the trust file at that time; empty once it was refused."""

    @property
    def origin(self) -> str:
        """The origin of the entry."""
        return self.remote if self.signer else self.remote + UNSIGNED

    @property
    def is_refused(self) -> bool:
        """Whether no key was accepted for it when it was verified last."""
        return bool(self.signer) and not self.trust

    def refused(self) -> FetchedOffer:
        """Returns the same as it is kept once no key is accepted for it."""
        return self._replace(trust=())

    def to_bytes(self) -> bytes:
        """Returns the file's content."""
        return json.dumps({"format": formats.FETCHED, **self._asdict()}).encode()

    def problem(self, disk: Disk) -> str | None:
        """Returns why the entry may not be loaded before its signatures are verified again, or None."""
        return TRUST_CHANGED if self.signer and self.trust != trust_stamp(disk) else None


def trust_stamp(disk: Disk | None = None) -> tuple[int, ...]:
    """Returns the stamp of the trust file."""
    return tuple((disk or Disk()).stamp(settings.trust_file()) or ABSENT)


def read(path: str) -> FetchedOffer:
    """Returns a fetched offer from its file. Raises OSError, FormatError."""
    value = schema.read(path, FETCHED)
    texts = value["remote"], value["offer"], tuple(value["signatures"]), value["signer"]
    return FetchedOffer(*texts, tuple(value["trust"]))
