"""Coverage-guided fuzzing of the files that a look-up reads. Needs atheris (pip install atheris); the tests do not.

    python tests/fuzz/fuzz_lookup.py -runs=100000 [CORPUS_FOLDER]

The first byte of an input selects a file: the stat record, the manifest or the memo. The other bytes replace the file's
content, or damage it. For every input a look-up must return the correct entry or none, and raise nothing.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import fake_disk, sample_ops
from support.compilers import fake_compiler
from support.store import fake_store

from opforge.builders.lookup.finder import find
from opforge.builders.toolchains import host, probe
from opforge.cache.layout import Layout
from opforge.cache.store import Store

FILES = ("record", "manifest", "memo")


class LookupTarget:
    """A stored op with its stat record, its manifest and the memo of its look-up."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.environ["CXX"] = fake_compiler.create(os.path.join(folder, "bin"))
        host.LINKERS = ()
        self.builder = sample_ops.plain_op(os.path.join(folder, "op"))
        self.root = os.path.join(folder, "store")
        self.key = fake_store.publish(self.builder(), self._store())
        assert self._find() == self.key
        layout = Layout(self.root)
        (plan,) = os.listdir(layout.path("plans"))
        (record,) = os.listdir(layout.plan(plan))
        (memo,) = os.listdir(layout.path("answers"))
        self.quarantine = layout.path("quarantine")
        self.paths = {
            "record": os.path.join(layout.plan(plan), record),
            "manifest": os.path.join(layout.entry(self.key), "manifest.json"),
            "memo": layout.path("answers", memo),
        }
        self.contents = {name: self._read(path) for name, path in self.paths.items()}
        (library,) = [name for name in os.listdir(layout.entry(self.key)) if ".so" in name]
        self.library = os.path.join(layout.entry(self.key), library)
        self.library_content = self._read(self.library)

    def _store(self) -> Store:
        return Store(self.root, fake_store.ME, disk=fake_disk.LaterDisk())

    def _find(self) -> str | None:
        probe.reset()
        entry = find(self.builder().spec(), self._store()).entry
        return entry and entry.key

    @staticmethod
    def _read(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def _restore(self) -> None:
        """Writes all files with their correct content."""
        shutil.rmtree(self.quarantine, ignore_errors=True)
        for path in (*self.paths.values(), self.library):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if not os.path.exists(self.library):
            with open(self.library, "wb") as file:
                file.write(self.library_content)
            os.chmod(self.library, 0o500)
        for name, path in self.paths.items():
            with open(path, "wb") as file:
                file.write(self.contents[name])

    def content_of(self, name: str, data: bytes) -> bytes:
        """Returns a file's new content: `data`, or if that begins with a zero byte, the old content with some changes.

        Each change takes three bytes: two for the position and one for the new value.
        """
        if data[:1] != b"\0":
            return data
        content = bytearray(self.contents[name])
        for start in range(1, len(data) - 2, 3):
            position = int.from_bytes(data[start : start + 2], "big") % len(content)
            content[position] = data[start + 2]
        return bytes(content)

    def run(self, data: bytes) -> str | None:
        """Looks the op up with the files of an input. Returns the key of the entry, None if there is none.

        Raises:
            AssertionError: Another entry was returned.
        """
        self._restore()
        name = FILES[data[0] % len(FILES)] if data else "record"
        if name != "memo":
            os.unlink(self.paths["memo"])
        with open(self.paths[name], "wb") as file:
            file.write(self.content_of(name, data[1:]))
        key = self._find()
        assert key in (None, self.key), key
        return key


def main() -> None:
    """Fuzzes until atheris ends."""
    import atheris

    logging.getLogger("opforge").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        target = LookupTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, target.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
