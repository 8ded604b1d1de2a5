"""What identifies an op: for each field of `OpSpec`, in which keys it is.

The *description* names the op and not the compiler: it finds prebuilt entries. The *plan key* is everything that is
known before a compiler starts. The key of a remembered look-up holds every field, with all paths.
"""

from __future__ import annotations

from typing import NamedTuple


class Enters(NamedTuple):
    """Whether a field is in the keys; `why` is the reason where it is not."""

    description: bool
    plan: bool
    why: str = ""


IDENTITY = {
    "name": Enters(True, True),
    "builder": Enters(False, False, "it is for messages"),
    "package": Enters(False, False, "it says where to look for prebuilt entries, not for which"),
    "version": Enters(True, True),
    "abi": Enters(True, True),
    "target": Enters(
        True,
        True,
        "the description holds the device alone: which level or architecture fits is decided"
        " by the records of the entries",
    ),
    "devices": Enters(False, False, "it says which targets are possible; the target is one of them"),
    "torch_target": Enters(True, True, "for the stable ABI alone"),
    "sources": Enters(True, True, "by root and path; the description also holds their contents"),
    "include_dirs": Enters(True, True, "by root and path; what they hold is compared after the key has matched"),
    "defines": Enters(True, True),
    "cxx_flags": Enters(True, True),
    "device_flags": Enters(True, True),
    "link_flags": Enters(True, True),
    "libraries": Enters(True, True),
    "roots": Enters(
        True, True, "by name and order. The plan holds those that have headers, and where each source lies"
    ),
    "debug": Enters(True, True),
    "sanitize": Enters(True, True),
    "portable": Enters(
        False, False, "the plan holds the compiler that it selects; a prebuilt entry's record says what it needs"
    ),
    "sysroot": Enters(False, False, "as for `portable`"),
    "toolchain": Enters(False, False, "as for `portable`"),
    "kernels": Enters(True, True),
    "extension_libraries": Enters(True, True),
}
"""Field of OpSpec -> the keys that it is in. A test changes each field and compares the keys with this table."""
