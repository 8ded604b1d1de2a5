"""Coverage-guided fuzzing of the files that a look-up reads. Needs atheris (pip install atheris); the tests do not.

    python tests/fuzz/fuzz_lookups.py -runs=100000 [CORPUS_FOLDER]

The first byte of an input chooses the file: an entry's record, how it was built, what a look-up remembered, or what a
compiler reported. The second chooses the damage: the rest of the input as the file's content, as changes of its bytes,
or as the seed of damage to the JSON in it. Whatever the input, a look-up returns the right entry or none, and raises
nothing.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import fake_disk, sample_ops
from support.compilers import fake_compiler
from support.fuzzing import json_mutations
from support.store.fake_store import ME
from support.store.published_op import publish_op

from opforge.builders.declaration.description import description_key
from opforge.builders.declaration.machine import this_machine
from opforge.builders.declaration.op_spec import root_paths
from opforge.builders.load_op import find
from opforge.builders.lookup.fit import fit_of
from opforge.builders.toolchains.discovery import probe
from opforge.cache.store import Store
from opforge.fast_path.library import BUILD, RECORD
from opforge.foundation import remembered_values

FILES = ("record", "build", "remembered", "compiler")
CHANGED_BYTES, CHANGED_JSON = 0, 1


class LookupTarget:
    """An op that is stored, with what an earlier look-up has remembered."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "caches")
        os.environ["CXX"] = fake_compiler.create(os.path.join(folder, "bin"))
        self.cls = sample_ops.plain_op(os.path.join(folder, "op"))
        self.root = os.path.join(folder, "store")
        self.key = publish_op(self.cls(), self._store())
        assert self._find() == self.key
        layout = self._store().layout
        entry, lookups = (
            layout.entry(self.key),
            os.path.join(remembered_values.folders()[0], remembered_values.LOOKUPS),
        )
        (name,) = os.listdir(lookups)
        (compiler,) = os.listdir(layout.path("toolchains"))
        self.paths = {
            "record": os.path.join(entry, RECORD),
            "build": os.path.join(entry, BUILD),
            "remembered": os.path.join(lookups, name),
            "compiler": layout.path("toolchains", compiler),
        }
        self.contents = {name: self._read(path) for name, path in self.paths.items()}
        self.library = next(os.path.join(entry, name) for name in os.listdir(entry) if name.endswith(".so"))
        self.library_content = self._read(self.library)

    def _store(self) -> Store:
        return Store(self.root, ME, disk=fake_disk.LaterDisk())

    def _find(self) -> str | None:
        probe.reset()
        entry = find(self.cls().spec(), self._store()).entry
        return entry and entry.key

    @staticmethod
    def _read(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def _restore(self) -> None:
        shutil.rmtree(self._store().layout.path("quarantine"), ignore_errors=True)
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
        """Returns the content that an input gives a file."""
        if data[:1] == bytes([CHANGED_JSON]):
            return json_mutations.mutated(self.contents[name], random.Random(data))
        if data[:1] != bytes([CHANGED_BYTES]):
            return data
        content = bytearray(self.contents[name])
        for start in range(1, len(data) - 2, 3):  # two bytes of a position, one of its new value
            content[int.from_bytes(data[start : start + 2], "big") % len(content)] = data[start + 2]
        return bytes(content)

    def run(self, data: bytes) -> str | None:
        """Looks the op up after an input has changed a file; returns the entry key. Raises AssertionError."""
        self._restore()
        name = FILES[data[0] % len(FILES)] if data else "record"
        if name != "remembered":
            os.unlink(self.paths["remembered"])
        with open(self.paths[name], "wb") as file:
            file.write(self.content_of(name, data[1:]))
        key = self._find()
        assert key in (None, self.key), key
        if name == "record":
            self._find_without_compiler()
        return key

    def _find_without_compiler(self) -> None:
        """Looks the op up by its description, as an entry of a layer is found."""
        spec, store = self.cls().spec(), self._store()
        fit = fit_of(spec, False, this_machine())
        match = store.own.find(description_key(spec), fit, root_paths(spec), store.disk)[0]
        assert match is None or match.entry.key == self.key


def main() -> None:
    """Runs until atheris ends."""
    import atheris

    logging.getLogger("opforge").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        target = LookupTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, target.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
