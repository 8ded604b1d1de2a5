"""Archives for tests: taken apart, rewritten, and refused."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from support.store.fake_store import ME

from opforge.cache.maintenance import verify
from opforge.cache.transfer import archive
from opforge.errors import ArchiveError

ENTRY = "entries/" + "a" * 32 + "-" + "b" * 8
"""The folder of an entry in an archive."""


def members(path):
    """Returns (TarInfo, bytes) of each member of an archive."""
    with tarfile.open(path) as file:
        return [(member, file.extractfile(member).read()) for member in file]


def rewrite(path, parts):
    """Writes an archive of (TarInfo, bytes)."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        for member, content in parts:
            member.size = len(content) if member.isreg() else 0
            file.addfile(member, io.BytesIO(content))


def new_member(name, kind=tarfile.REGTYPE, link=""):
    """Returns a TarInfo."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def entry_keys(layout):
    """Returns the keys of the entries in a store."""
    return set(os.listdir(layout.path("entries")))


def intact_keys(layout):
    """Returns the keys of the entries in a store; fails if one is damaged, or something is left in staging."""
    checked = verify.verify(layout, ME)
    assert not [entry for entry in checked if entry.problem]
    assert os.listdir(layout.path("staging")) == []
    return {entry.key for entry in checked}


def refusal_of(layout, path):
    """Unpacks an archive that must be refused; returns the error. The store must be left intact."""
    with pytest.raises(ArchiveError) as caught:
        archive.unpack(layout, str(path), ME)
    intact_keys(layout)
    return caught.value
