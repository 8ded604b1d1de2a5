"""Path names in a store.

CACHEDIR.TAG                        tells backup programs to leave the store out
v2/entries/ENTRY/                   a library, its record, and how it was built; ENTRY is KEY-DIGITS
v2/plans/PLAN/ENTRY                 an empty file for each entry of a plan; its time is that of the last use
v2/descriptions/DESCRIPTION/ENTRY   an empty file for each entry of a description: finds prebuilt ops
v2/jit/TOPIC.DIGITS/                a page of what a JIT compiled: see jits/page.py
v2/fetched/DESCRIPTION/ENTRY        for each entry that a remote offered: its offer, with the signatures
v2/objects/UNIT/                    object files, by what they were compiled from
v2/peaks/                           how much memory the compilers of each op needed
v2/pins/ENTRY                       empty files: the entries that no limit evicts: see records/pins.py
v2/sources/                         the sources of load_inline
v2/toolchains/                      what is remembered of compilers and of packages: see remembered_values.py
v2/tuned/DESCRIPTION/               tuning results: see builders/lookup/tuning_results.py
v2/locks/ staging/ failures/ logs/ quarantine/
v2/bytes                            the running sum of sizes
v2/summaries                        what listings show of each entry
v2/swept                            its modification time: when the store was made, or last swept
machine/ID/                         remembered look-ups, in the user's default folder alone: see remembered_values.py
"""

from __future__ import annotations

from typing import NamedTuple

from opforge.fast_path.library import PACKAGE_LAYER as PACKAGE_LAYER
from opforge.fast_path.lookup import FETCHED as FETCHED
from opforge.fast_path.lookup import LISTED as LISTED
from opforge.fast_path.lookup import UNSIGNED as UNSIGNED
from opforge.foundation import formats
from opforge.foundation.remembered_values import MACHINE as MACHINE

VERSION = formats.STORE
SWEPT = "swept"
TAG_NAME = "CACHEDIR.TAG"
TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder holds compiled ops that opforge can build again. It may be deleted at any time.\n"
)

DIGITS = 8
"""How many digits of its library's SHA-256 end the name of an entry."""


def entry_name(key: str, sha256: str) -> str:
    """Returns the name of an entry's folder. Another library with the same key has another name.

    The dynamic linker knows a library by its path, so no path may ever get other bytes.
    """
    return f"{key}-{sha256[:DIGITS]}"


class Layout(NamedTuple):
    """The paths of one store."""

    root: str

    def __str__(self) -> str:
        """Returns the root folder."""
        return self.root

    def path(self, *parts: str) -> str:
        """Returns a path inside the current version of the store."""
        return "/".join((self.root, VERSION, *parts))  # os.path.join takes five times as long

    def plan(self, plan_key: str) -> str:
        """Returns the folder that lists the entries of a plan."""
        return self.path("plans", plan_key)

    def entry(self, name: str) -> str:
        """Returns the folder of an entry."""
        return self.path("entries", name)

    def description(self, key: str) -> str:
        """Returns the folder that lists the entries of a description."""
        return self.path("descriptions", key)

    def fetched(self, key: str) -> str:
        """Returns the folder that lists the fetched entries of a description."""
        return self.path(FETCHED, key)
