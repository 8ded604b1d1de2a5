"""Fetches what Triton would compile or time itself. `ops/triton/kernel_cache.py` imports it if a remote is asked.

It holds machine code, so it is never taken from a remote with `unsigned=1`. A miss needs no memory: what no remote has
is compiled, and kept.
"""

from __future__ import annotations

import os

from opforge.cache.records import triton as records
from opforge.cache.records.triton import FETCHED, Kernel
from opforge.cache.store import Store
from opforge.machine_folder import write_file

from . import kept
from .offers import Offer
from .take import Remotes, Taken, Wanted
from .triton_statements import TRITON


class _Kernel(Wanted):
    """What Triton looks for under a key of its own."""

    kind = TRITON

    def __init__(self, store: Store, key: str, filename: str) -> None:
        """Takes the store that it is for, Triton's key, and the file that Triton looks for."""
        super().__init__(records.name_of(filename), key, store.layout)
        self._filename = filename

    def rank(self, offer: Offer) -> int:
        """Returns 0: any with this key is as good."""
        if offer.name != self.what:
            raise ValueError(f"it is a kernel {offer.name!r}, expected {self.what!r}")
        return 0

    def place(self, taken: Taken) -> str:
        """Keeps the files. Raises ValueError for other files than these, OSError."""
        files = {part.path: part.sha256 for part in taken.files}
        if self._filename not in files:
            raise ValueError(f"it has no {self._filename}")
        records.write(taken.folder, taken.offer.facts, files)
        write_file(os.path.join(taken.folder, FETCHED), taken.note.to_bytes())
        return os.path.basename(records.add(self.layout, taken.folder, self.topic))


def bring(store: Store, key: str, filename: str) -> bool:
    """Fetches what a remote has for a key of Triton's into a store; returns whether it is there now.

    `filename` is the file that Triton looks for.
    """
    return Remotes().take(_Kernel(store, key, filename))[0]


def verify_again(kernel: Kernel) -> str:
    """Verifies what was fetched with the trust file as it is now; returns why it must not be used now, or "".

    The rule is that of `kept`.
    """

    def expected(offer: Offer) -> None:
        if offer.tree.digest != kernel.digest or offer.facts != kernel.facts:
            raise ValueError("it is not what was signed")

    try:
        path = os.path.join(kernel.folder, FETCHED)
        return kept.problem(path, TRITON, kernel.key, f"{kernel.name}: a kernel of Triton's", expected)
    except (OSError, ValueError) as error:
        return str(error)
