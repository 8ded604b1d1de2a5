"""Coverage-guided fuzzing of the archive reader. Needs atheris (pip install atheris); the tests do not.

    python tests/fuzz/fuzz_archive.py -runs=100000 [CORPUS_FOLDER]

An input is an archive. If its first byte is 0xff, it is a recipe that damages a valid archive. Whatever the input,
`unpack` returns or raises ArchiveError, publishes only intact entries and touches nothing outside its store.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support.store.fake_store import ME, FakeStore

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.maintenance import verify
from opforge.cache.transfer import archive
from opforge.errors import ArchiveError

RECIPE = 0xFF


class ArchiveTarget:
    """A folder to unpack in, and a valid archive to damage."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        store = FakeStore(os.path.join(folder, "exported"), os.path.join(folder, "src"))
        path = os.path.join(folder, "valid.tar")
        archive.export(store.layout, [store.add("relu"), store.add("adam")], path)
        with open(path, "rb") as file:
            self.content = file.read()

    def archive_of(self, data: bytes) -> bytes:
        """Returns the archive that an input encodes."""
        if data[:1] != bytes([RECIPE]):
            return data
        content = bytearray(self.content)
        for start in range(1, len(data) - 3, 4):  # two bytes of a position, one of an action, one of a new value
            position = int.from_bytes(data[start : start + 2], "big") % len(content)
            if data[start + 2] == 0:
                del content[position:]
            elif data[start + 2] == 1:
                content[position:position] = content[position // 512 * 512 :][:512]
            else:
                content[position] = data[start + 3]
            if not content:
                break
            self._fix_checksum(content, position)
        return bytes(content)

    def _fix_checksum(self, content: bytearray, position: int) -> None:
        """Writes a valid checksum into the header around a position: otherwise the header would not be read."""
        start = position // 512 * 512
        header = bytes(content[start : start + 512])
        if len(header) == 512 and header[257:262] == b"ustar":
            total = sum(header[:148]) + 8 * 32 + sum(header[156:])
            content[start + 148 : start + 156] = b"%06o\0 " % total

    def run(self, data: bytes) -> list[str]:
        """Unpacks the archive of an input; returns the keys of the published entries. Raises AssertionError."""
        root = os.path.join(self.folder, "store")
        shutil.rmtree(root, ignore_errors=True)
        current.prepare(root, ME)
        layout, path = Layout(root), os.path.join(self.folder, "input.tar")
        with open(path, "wb") as file:
            file.write(self.archive_of(data))
        before = sorted(os.listdir(self.folder))
        try:
            archive.unpack(layout, path, ME)
        except ArchiveError:
            pass
        checked = verify.verify(layout, ME)
        assert not [entry for entry in checked if entry.problem], checked
        assert os.listdir(layout.path("staging")) == []
        assert sorted(os.listdir(self.folder)) == before
        return sorted(entry.key for entry in checked)


def small_archive(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Returns an archive of one member, to begin with."""
    buffer, member = io.BytesIO(), tarfile.TarInfo(name)
    member.type, member.size = kind, len(content)
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def main() -> None:
    """Runs until atheris ends."""
    import atheris

    with tempfile.TemporaryDirectory() as folder:
        target = ArchiveTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, target.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
