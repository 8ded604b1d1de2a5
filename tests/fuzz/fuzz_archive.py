"""Coverage-guided fuzzing of the archive reader. Needs atheris (pip install atheris); the tests do not.

    python tests/fuzz/fuzz_archive.py -runs=100000 [CORPUS_FOLDER]

An input is an archive. If it begins with 0xff, it is a recipe instead: the steps that damage a valid archive. For every
input `unpack` must succeed or raise ArchiveError, publish only complete entries, and change nothing outside its store.
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
    """A folder to unpack in, and a valid archive to damage."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        store = MadeUpStore(os.path.join(folder, "source"), os.path.join(folder, "src"))
        valid = os.path.join(folder, "valid.tar")
        archive.export(store.layout, [store.add("relu"), store.add("adam")], valid)
        with open(valid, "rb") as file:
            self.content = file.read()

    def archive_of(self, data: bytes) -> bytes:
        """Returns the archive that an input stands for.

        A step of a recipe has four bytes: two for the position, one for the operation (0 truncates, 1 inserts the
        block at the position once more, others write a byte), and one for the byte to write.
        """
        if data[:1] != bytes([RECIPE]):
            return data
        content = bytearray(self.content)
        for start in range(1, len(data) - 3, 4):
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
        """Corrects the checksum of the header around a position. Otherwise tarfile would not read the header."""
        start = position // 512 * 512
        header = bytes(content[start : start + 512])
        if len(header) == 512 and header[257:262] == b"ustar":
            total = sum(header[:148]) + 8 * 32 + sum(header[156:])
            content[start + 148 : start + 156] = b"%06o\0 " % total

    def run(self, data: bytes) -> list[str]:
        """Unpacks the archive of an input. Returns the keys of the published entries.

        Raises:
            AssertionError: An entry is incomplete, or a file was left behind.
        """
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
        results = verify.verify(layout, ME)
        assert not [result for result in results if result.problem], results
        assert os.listdir(layout.path("staging")) == []
        assert sorted(os.listdir(self.folder)) == before
        return sorted(result.key for result in results)


def small_archive(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Returns an archive with one member."""
    output, member = io.BytesIO(), tarfile.TarInfo(name)
    member.type, member.size = kind, len(content)
    with tarfile.open(fileobj=output, mode="w") as file:
        file.addfile(member, io.BytesIO(content))
    return output.getvalue()


def main() -> None:
    """Fuzzes until atheris ends."""
    import atheris

    with tempfile.TemporaryDirectory() as folder:
        target = ArchiveTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, target.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
