"""Archives for tests: taken apart, put together anew, and refused."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from support.store.fake_store import ME

from opforge.cache.maintenance import verify
from opforge.cache.transfer import archive
from opforge.errors import ArchiveError


def members(path):
    """(TarInfo, bytes) of everything in an archive."""
    with tarfile.open(path) as file:
        return [(one, file.extractfile(one).read()) for one in file]


def rewrite(path, parts):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        for member, content in parts:
            member.size = len(content) if member.isreg() else 0
            file.addfile(member, io.BytesIO(content))


def held(place):
    return set(os.listdir(place.path("entries")))


def is_whole(place):
    checked = verify.verify(place, ME)
    assert not [one for one in checked if one.problem]
    assert os.listdir(place.path("staging")) == []
    return {one.key for one in checked}


def refused(place, path):
    with pytest.raises(ArchiveError) as caught:
        archive.unpack(place, str(path), ME)
    is_whole(place)
    return caught.value


def member(name, kind=tarfile.REGTYPE, link=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


KEY = "entries/" + "a" * 32
