"""Coverage-guided fuzzing of the archive reader. Needs atheris (pip install atheris), which the tests do not.

    python tests/fuzz/fuzz_archive.py -runs=100000 [CORPUS_FOLDER]

An input is an archive, or where it begins with 0xff a recipe for one: entries that are right, then damaged. Whatever
it is, `unpack` ends or raises ArchiveError, publishes only whole entries and touches nothing outside its store.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support.store.fake_store import ME, MadeUpStore

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.maintenance import verify
from opforge.cache.transfer import archive
from opforge.errors import ArchiveError

RECIPE = 0xFF


class ArchiveTarget:
    """A folder to unpack in, and a right archive to damage."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        made = MadeUpStore(os.path.join(folder, "made"), os.path.join(folder, "src"))
        self.right = os.path.join(folder, "right.tar")
        archive.export(made.layout, [made.add("relu"), made.add("adam")], self.right)
        with open(self.right, "rb") as file:
            self.content = file.read()

    def archive_of(self, data: bytes) -> bytes:
        """The archive that an input stands for."""
        if data[:1] != bytes([RECIPE]):
            return data
        content = bytearray(self.content)
        for at in range(1, len(data) - 3, 4):  # two bytes of a place, one of what to do, one of what to put there
            place = int.from_bytes(data[at : at + 2], "big") % len(content)
            if data[at + 2] == 0:
                del content[place:]
            elif data[at + 2] == 1:
                content[place:place] = content[place // 512 * 512 :][:512]
            else:
                content[place] = data[at + 3]
            if not content:
                break
            self._mend(content, place)
        return bytes(content)

    def _mend(self, content: bytearray, place: int) -> None:
        """Give the header around a damaged place a checksum that is right again, so that it is read."""
        start = place // 512 * 512
        header = bytes(content[start : start + 512])
        if len(header) == 512 and header[257:262] == b"ustar":
            total = sum(header[:148]) + 8 * 32 + sum(header[156:])
            content[start + 148 : start + 156] = b"%06o\0 " % total

    def one(self, data: bytes) -> list[str]:
        """Unpack what an input stands for; returns the results that were published. Raises AssertionError."""
        root = os.path.join(self.folder, "store")
        shutil.rmtree(root, ignore_errors=True)
        current.prepare(root, ME)
        place, path = Layout(root), os.path.join(self.folder, "input.tar")
        with open(path, "wb") as file:
            file.write(self.archive_of(data))
        before = sorted(os.listdir(self.folder))
        try:
            archive.unpack(place, path, ME)
        except ArchiveError:
            pass
        checked = verify.verify(place, ME)
        assert not [one for one in checked if one.problem], checked
        assert os.listdir(place.path("staging")) == []
        assert sorted(os.listdir(self.folder)) == before
        return sorted(one.key for one in checked)


def small_archive(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """An archive of one member, to begin with."""
    made, member = io.BytesIO(), tarfile.TarInfo(name)
    member.type, member.size = kind, len(content)
    with tarfile.open(fileobj=made, mode="w") as file:
        file.addfile(member, io.BytesIO(content))
    return made.getvalue()


def main() -> None:
    """Fuzz until atheris ends."""
    import atheris

    with tempfile.TemporaryDirectory() as folder:
        target = ArchiveTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, target.one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
