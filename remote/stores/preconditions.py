"""The proof that a server honours preconditions, before anything is published to it.

A server that ignores them answers success, overwrites the object, and two publishers at once would lose offers.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from opforge.errors import StoreError

PROBE = "v1/probe"
"""The object that is written to prove it. Its content has no meaning."""
_proven: set[str] = set()
"""The URLs of stores that have proven it to this process."""


def prove(
    url: str,
    create: Callable[[str, bytes], bool],
    replace: Callable[[str, bytes, str], bool],
) -> None:
    """Raises StoreError if the store does not honour preconditions; it is asked once in a process.

    Args:
        url: The store's URL, for the message and for what is remembered.
        create: Stores an object if there is none, without this proof. It may be called twice for the same name.
        replace: Replaces an object if it has a version, without this proof.
    """
    if url in _proven:
        return
    create(PROBE, os.urandom(16))
    if create(PROBE, os.urandom(16)):
        reason = "the server overwrote an object although 'If-None-Match: *' forbids that, as nginx's dav module does"
    elif replace(PROBE, os.urandom(16), '"another-version"'):
        reason = "the server overwrote an object although 'If-Match' forbids that"
    else:
        _proven.add(url)
        return
    hint = "Publish to a server that honours preconditions, such as apache2 with mod_dav, to S3 or to a folder"
    raise StoreError(url, "publishing", reason, hint)
