"""Where things lie in a store.

CACHEDIR.TAG              so that backups leave it out
v1/plans/PLAN/RESULT-PLACE.json    tickets: what a hit reads
v1/entries/RESULT/        the library and its manifest
v1/descriptions/KEY/RESULT         which entries answer a description: how a prebuilt op is found
v1/objects/UNIT/          object files, by what they were compiled from
v1/peaks/                 how much memory each op's compilers took
v1/pins/                  which entries no limit evicts
v1/sources/               the sources of load_inline
v1/answers/               what each look-up came to, so that the next one makes no plan
v1/toolchains/            what each compiler said of itself
v1/triton/KEY/            Triton's own cache, for kernels that are given to Triton itself
v1/locks/ staging/ failures/ logs/ quarantine/
v1/bytes summaries swept           the running sum of sizes, what listings say, when ages were last looked at
index/                    entry points of other packages
"""

from __future__ import annotations

import os
from typing import NamedTuple

VERSION = "v1"
TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder holds compiled ops that opforge can build again. It may be deleted at any time.\n"
)


class Layout(NamedTuple):
    """The paths of one store."""

    root: str

    def __str__(self) -> str:
        return self.root

    def path(self, *parts: str) -> str:
        """A path inside the current version of the store."""
        return os.path.join(self.root, VERSION, *parts)

    def plan(self, plan_key: str) -> str:
        """The folder of a plan's tickets."""
        return self.path("plans", plan_key)

    def entry(self, result: str) -> str:
        """The folder of an entry."""
        return self.path("entries", result)

    def description(self, key: str) -> str:
        """The folder that lists the entries for a description."""
        return self.path("descriptions", key)
