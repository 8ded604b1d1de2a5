"""The signers of ops and programs that this process loaded from files: a key signs nothing that others have made."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from opforge.fast_path.library import Entry
from opforge.remote import op_statements
from opforge.remote.signatures import signing
from opforge.remote.signatures.keys import Signer
from opforge.remote.signatures.signing import Named


class Origin(NamedTuple):
    """A file of a program that was loaded."""

    path: str
    keys: tuple[Named, ...]
    """The public keys that signed it, and are trusted; none if it was loaded without a signature."""

    def is_of(self, signer: Signer) -> bool:
        """Returns whether a signer's key is one of these."""
        signature = signer(b"") if self.keys else None
        return signature is not None and any(signing.is_signed(b"", signature, key) for key in self.keys)


_entries: dict[str, Origin] = {}
"""By the keys of the entries that this process has loaded from files of programs."""
_programs: WeakKeyDictionary[Any, Origin] = WeakKeyDictionary()


def note_entry(key: str, origin: Origin) -> None:
    """Keeps where an entry came from, as long as it is loaded: to the end of the process."""
    _entries[key] = origin


def note_program(program: Any, origin: Origin) -> None:
    """Keeps where a program came from, as long as there is one."""
    _programs[program] = origin


def problem(program: Any, entries: Iterable[Entry], signer: Signer) -> str:
    """Returns the parts of a program that were not made here and that a signer's key must not sign; empty if none."""
    origin = None if isinstance(program, (str, os.PathLike)) else _programs.get(program)
    if origin and not origin.is_of(signer):
        return f"the program came from {origin.path}, which this key has not signed"
    for entry in entries:
        name, origin = entry.record["op"], _entries.get(entry.key)
        if origin and not origin.is_of(signer):
            return f"its op {name!r} came from {origin.path}, which this key has not signed"
        if not origin and (place := op_statements.came_from(entry.folder)):
            return f"its op {name!r} came from {place}, and was not made here"
    return ""
