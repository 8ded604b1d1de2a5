"""Coverage-guided fuzzing of what a look-up reads. Needs atheris (pip install atheris), which the tests do not.

    python tests/fuzz/fuzz_tickets.py -runs=100000 [CORPUS_FOLDER]

The first byte of an input chooses the file (ticket, manifest or answer), the rest is put in its place, or damages what
is there. Whatever it is, a look-up gives the right entry or none, and raises nothing.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile

from support import fake_disk, sample_ops

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support.compilers import fake_compiler
from support.store import fake_store

from opforge.builders.lookup.finder import find
from opforge.builders.toolchains import host, probe
from opforge.cache.store import Store

FILES = ("ticket", "manifest", "answer")


class TicketTarget:
    """An op that is stored, with its ticket, its manifest and its answer."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.environ["CXX"] = fake_compiler.create(os.path.join(folder, "bin"))
        host.LINKERS = ()
        self.cls = sample_ops.plain_op(os.path.join(folder, "op"))
        self.root = os.path.join(folder, "store")
        self.result = fake_store.publish(self.cls(), self._store())
        assert self._find() == self.result
        v1 = os.path.join(self.root, "v1")
        (plan,) = os.listdir(os.path.join(v1, "plans"))
        (ticket,) = os.listdir(os.path.join(v1, "plans", plan))
        (answer,) = os.listdir(os.path.join(v1, "answers"))
        self.paths = {
            "ticket": os.path.join(v1, "plans", plan, ticket),
            "manifest": os.path.join(v1, "entries", self.result, "manifest.json"),
            "answer": os.path.join(v1, "answers", answer),
        }
        self.contents = {name: self._read(path) for name, path in self.paths.items()}
        self.library = next(name for name in os.listdir(os.path.dirname(self.paths["manifest"])) if ".so" in name)
        self.library_content = self._read(os.path.join(os.path.dirname(self.paths["manifest"]), self.library))

    def _store(self) -> Store:
        return Store(self.root, fake_store.ME, disk=fake_disk.LaterDisk())

    def _find(self) -> str | None:
        probe.reset()
        entry = find(self.cls().spec(), self._store()).entry
        return entry and entry.key

    @staticmethod
    def _read(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def _restore(self) -> None:
        folder = os.path.dirname(self.paths["manifest"])
        shutil.rmtree(os.path.join(self.root, "v1", "quarantine"), ignore_errors=True)
        library = os.path.join(folder, self.library)
        for path in (*self.paths.values(), library):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if not os.path.exists(library):
            with open(library, "wb") as file:
                file.write(self.library_content)
            os.chmod(library, 0o500)
        for name, path in self.paths.items():
            with open(path, "wb") as file:
                file.write(self.contents[name])

    def content_of(self, name: str, data: bytes) -> bytes:
        """What an input puts in a file's place: itself, or after a zero byte, what is right with some bytes changed."""
        if data[:1] != b"\0":
            return data
        content = bytearray(self.contents[name])
        for at in range(1, len(data) - 2, 3):
            content[int.from_bytes(data[at : at + 2], "big") % len(content)] = data[at + 2]
        return bytes(content)

    def one(self, data: bytes) -> str | None:
        """Look the op up with what an input makes of its files; returns what was found. Raises AssertionError."""
        self._restore()
        name = FILES[data[0] % len(FILES)] if data else "ticket"
        if name != "answer":
            os.unlink(self.paths["answer"])
        with open(self.paths[name], "wb") as file:
            file.write(self.content_of(name, data[1:]))
        found = self._find()
        assert found in (None, self.result), found
        return found


def main() -> None:
    """Fuzz until atheris ends."""
    import atheris

    logging.getLogger("opforge").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        target = TicketTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, target.one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
