"""Coverage-guided fuzzing of the reader of blobs. Needs atheris (pip install atheris); the tests do not.

    python tests/fuzz/fuzz_blobs.py -runs=100000 [CORPUS_FOLDER]

An input is the tar archive in a blob. If its first byte is 0xff, it is a recipe that damages a valid one. Whatever the
input, `unpack` returns or raises BlobError, and touches nothing outside its folder.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support.text_files import write

from opforge.cache.keys import bytes_digest
from opforge.remote import blobs
from opforge.remote.blobs import Blob, BlobError, Tree
from opforge.remote.tar_reader import zstd

RECIPE = 0xFF
FILES = {"__init__.py": "import torch\n", "deep/er/data.json": "{}", f"{'x' * 120}.so": "library" * 90}


def packed(folder: str) -> tuple[bytes, Tree]:
    """Returns a valid blob with its tree, after writing its files to a new folder."""
    for name, text in FILES.items():
        write(folder, name, text)
    with tempfile.TemporaryFile() as file:
        tree, _hashes = blobs.pack(folder, FILES, file)
        return file.read(), tree


def unpack(data: bytes, tree: Tree, folder: str) -> str:
    """Unpacks a blob as a signer might state it, who is wrong or means harm; returns why it is refused, or ""."""
    stated = Tree(tree.digest, Blob(bytes_digest(data), len(data), max(tree.blob.unpacked, 64 << 10)))
    with tempfile.TemporaryFile() as file:
        file.write(data)
        try:
            blobs.unpack(file, stated, folder)
        except BlobError as error:
            return str(error)
    return ""


class BlobTarget:
    """A folder to unpack in, and a valid blob to damage."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        blob, self.tree = packed(os.path.join(folder, "files"))
        self.content: bytes = zstd().decompress(blob)

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

    def run(self, data: bytes) -> str:
        """Unpacks the blob of an input; returns why it is refused, or "". Raises AssertionError."""
        before = sorted(os.listdir(self.folder))
        compressor: Any = zstd()
        problem = unpack(compressor.compress(self.archive_of(data), level=1), self.tree, f"{self.folder}/out")
        shutil.rmtree(f"{self.folder}/out", ignore_errors=True)
        assert sorted(os.listdir(self.folder)) == before
        return problem


def main() -> None:
    """Runs until atheris ends."""
    import atheris

    with tempfile.TemporaryDirectory() as folder:
        target = BlobTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, target.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
