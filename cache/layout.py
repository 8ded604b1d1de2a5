"""Path names in a store.

CACHEDIR.TAG                        marks the store as one that backup programs skip
v1/plans/PLAN/ENTRY-ROOTS.json      stat records: what a hit reads; ROOTS is the digest of the root paths
v1/entries/ENTRY/                   the library and its manifest
v1/descriptions/DESCRIPTION/ENTRY   an empty file for each entry of a description: finds prebuilt ops
v1/objects/UNIT/                    object files, by what they were compiled from
v1/peaks/                           how much memory the compilers of each op needed
v1/pins/                            the entries that no limit evicts
v1/sources/                         the sources of load_inline
v1/answers/                         remembered look-ups, so that the next one makes no plan
v1/toolchains/                      what each compiler reported about itself
v1/triton/KEY/                      Triton's own cache, for kernels that a program gives to Triton itself
v1/locks/ staging/ failures/ logs/ quarantine/
v1/bytes                            the running sum of sizes
v1/summaries                        what listings show of each entry
v1/swept                            its modification time: when ages were last checked
index/                              entry points of other packages
"""

from __future__ import annotations

import os
from typing import NamedTuple

VERSION = "v1"
INDEX = "index"
"""The entry points of other packages; see accelerator/entry_points.py."""
TAG_NAME = "CACHEDIR.TAG"
TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder holds compiled ops that opforge can build again. It may be deleted at any time.\n"
)

PACKAGE_LAYER = "_opforge_ops"
"""The layer that an installed package carries: this folder below the package's own."""


class Layout(NamedTuple):
    """The paths of one store."""

    root: str

    def __str__(self) -> str:
        """Returns the root folder."""
        return self.root

    def path(self, *parts: str) -> str:
        """Returns a path inside the current version of the store."""
        return os.path.join(self.root, VERSION, *parts)

    def plan(self, plan_key: str) -> str:
        """Returns the folder of a plan's stat records."""
        return self.path("plans", plan_key)

    def entry(self, key: str) -> str:
        """Returns the folder of an entry."""
        return self.path("entries", key)

    def description(self, key: str) -> str:
        """Returns the folder that lists the entries of a description."""
        return self.path("descriptions", key)
