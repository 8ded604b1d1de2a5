"""Fetches signed releases, and keeps them for this user on this machine.

A release never changes, and is named by its digest. So whoever has locked a project and installs it asks the registry
for the blobs alone. Signatures are verified each time, with the keys that are trusted by then.
"""

from __future__ import annotations

from opforge.errors import KernelFormatError
from opforge.foundation import remembered_values, remembered_values_writer
from opforge.foundation.remembered_values import FlatStamps
from opforge.remote import statements
from opforge.remote.statements import Signed
from opforge.remote.stores.protocol import ObjectStore

from . import release

MAX_KEPT_BYTES = 1 << 20
"""A larger release is fetched each time."""


def signed(store: ObjectStore, digest: str, where: str, from_kept: bool = True) -> Signed | None:
    """Returns a release by its digest; None if the store has none. Its signatures are not verified here.

    Unless `from_kept`, the store is asked in any case.

    Raises StoreError, KernelFormatError.
    """
    kept = _kept(digest) if from_kept else None
    if kept is not None:
        return kept
    stored = store.get(statements.name_of(digest), release.MAX_BYTES)
    if stored is None:
        return None
    fetched = release.split(stored.data, digest, where)
    if len(stored.data) <= MAX_KEPT_BYTES:
        remembered_values_writer.remember(_name(digest), FlatStamps(), stored.data.decode(errors="replace"))
    return fetched


def _kept(digest: str) -> Signed | None:
    try:
        found = remembered_values.recall(_name(digest))
        return release.split(found[0].encode(), digest, "") if found and isinstance(found[0], str) else None
    except KernelFormatError:
        return None  # damaged: it is fetched again


def _name(digest: str) -> str:
    return f"release-{digest}"
