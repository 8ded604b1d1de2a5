"""Coverage-guided fuzzing of the records of a store. Needs atheris (pip install atheris); the tests do not.

    python tests/fuzz/fuzz_records.py -runs=100000 [CORPUS_FOLDER]

The first byte of an input chooses the file, the second the damage: the rest of the input as its content, the rest as
the seed of damage to the JSON in it, or of damage to its bytes. Whatever the input, what reads the file returns
something that can be printed as JSON, raises nothing, and touches nothing outside of the store.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support.fuzzing import json_mutations, mutations
from support.store.fake_store import ME, FakeStore

from opforge.builders.declaration.machine import this_machine
from opforge.builders.lookup.fit import entry_problem
from opforge.builders.run.planned_build import shared_error
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.maintenance import explain, listing, verify
from opforge.cache.records import failures, objects, size_log
from opforge.cache.records.inputs import Dependency, Inputs, RootedPath
from opforge.cache.records.validity import Observation
from opforge.cache.store import Fit, Rejected
from opforge.fast_path.library import BUILD, RECORD
from opforge.foundation.remembered_values import FlatStamps

AS_IT_IS, AS_JSON, AS_BYTES = range(3)


class RecordTarget:
    """A store with every kind of record, each with what reads it."""

    def __init__(self, folder: str) -> None:
        self.folder, self.disk = folder, Disk()
        self.store = FakeStore(os.path.join(folder, "store"), os.path.join(folder, "src"))
        layout = self.layout = self.store.layout
        self.key = self.store.add("relu")
        self.store.add("adam")
        self.plan = str((listing.record_of(layout, self.key) or {})["plan"])
        self.object = os.path.join(folder, "a.o")
        self._write(self.object, b"object")
        objects.keep(layout, "unit", self.object, self._inputs())
        failures.note(
            layout, "plan", failures.Failure("compile", {"message": "text", "op": "relu"}, "state"), FlatStamps()
        )
        with lock.acquire(layout.path("locks", "plan"), "relu", 1):
            lock.progress(layout.path("locks", "plan"), "3 of 5")
        listing.entries(layout)
        size_log.measure(layout)
        (record,) = [name for name in os.listdir(layout.path("objects", "unit")) if name.endswith(".json")]
        self.files: dict[str, tuple[str, Callable[[], object]]] = {
            "record": (os.path.join(layout.entry(self.key), RECORD), self._read_record),
            "build": (os.path.join(layout.entry(self.key), BUILD), self._read_build),
            "failure": (failures.path(layout, "plan"), self._read_failure),
            "sizes": (layout.path(size_log.FILE), lambda: str(size_log.total(layout))),
            "summaries": (layout.path("summaries"), self._list),
            "object": (layout.path("objects", "unit", record), self._reuse_object),
            "lock's owner": (layout.path("locks", "plan.owner"), self._read_owner),
        }
        self.contents = {name: self._content(path) for name, (path, _read) in self.files.items()}
        self.outside = self._outside()

    def _inputs(self) -> Inputs:
        path = os.path.join(self.folder, "src", "relu.cpp")
        files = (Dependency("own", "relu.cpp", str(self.disk.digest(path))),)
        return Inputs(files, names=("b.h",), searched=(RootedPath("own", ""),), folders=(RootedPath("own", ""),))

    @staticmethod
    def _content(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    @staticmethod
    def _write(path: str, content: bytes) -> None:
        with open(path, "wb") as file:
            file.write(content)

    def _outside(self) -> list[str]:
        return sorted(os.listdir(self.folder)) + sorted(os.listdir(os.path.join(self.folder, "src")))

    def _read_record(self) -> object:
        entry = self.store.store.own.read(self.key)
        rejected = self._find(lambda record: Fit(entry_problem(record, this_machine()) or "")) + self._find(
            lambda _record: Fit()
        )
        others = explain.rejected_entries(self.layout, "relu", "cpu", self.store.root_paths, self.disk)
        checked = [result.to_json() for result in verify.verify(self.layout, ME)]
        return [
            entry and dict(entry.record),
            list(map(str, rejected)),
            others,
            self._read_build(),
            checked,
            self._list(),
        ]

    def _find(self, fit: Callable[[Mapping[str, Any]], Fit]) -> tuple[Rejected, ...]:
        description = key_of(["description", "relu"])
        match, rejected = self.store.store.own.find(description, fit, self.store.root_paths, self.disk)
        assert match is None or match.entry.key == self.key
        return rejected

    def _read_build(self) -> object:
        near = explain.nearest(self.layout, "relu", {"op": "relu"}, self.store.root_paths, self.disk)
        match, rejected = self.store.store.get(self.plan, self.store.root_paths)
        assert match is None or match.entry.key == self.key
        return [near and str(near), *map(str, rejected)]

    def _read_failure(self) -> object:
        failure = failures.after(self.layout, "plan", "", "state")
        return failure and str(shared_error(failure.kind, failure.attributes))

    def _list(self) -> object:
        return [entry.to_json() for entry in listing.entries(self.layout)]

    def _reuse_object(self) -> object:
        inputs = objects.reuse(self.layout, "unit", Observation(self.store.root_paths, self.disk), self.object)
        return inputs and inputs.to_json()

    def _read_owner(self) -> object:
        lock.progress(self.layout.path("locks", "plan"), "4 of 5")
        return lock.owner(self.layout.path("locks", "plan"))

    def content_of(self, name: str, data: bytes) -> bytes:
        """Returns the content that an input gives a file."""
        damage, rest = (data[0] % 3, data[1:]) if data else (AS_IT_IS, b"")
        if damage == AS_IT_IS:
            return rest
        chance = random.Random(rest)
        if damage == AS_JSON:
            return json_mutations.mutated(self.contents[name], chance)
        return chance.choice(mutations.KINDS)(self.contents[name], chance)

    def run(self, data: bytes) -> object:
        """Returns what is read of a file that an input damages. Raises AssertionError, or what escapes."""
        name = list(self.files)[data[0] % len(self.files)] if data else "record"
        path, read = self.files[name]
        self._write(path, self.content_of(name, data[1:]))
        try:
            result = read()
            json.dumps(result)
            assert self._outside() == self.outside
            return result
        finally:
            self._restore()

    def _restore(self) -> None:
        """Puts back what a run damaged, and what it moved to the quarantine."""
        quarantine = self.layout.path("quarantine")
        for name in os.listdir(quarantine) if os.path.isdir(quarantine) else ():
            shutil.rmtree(self.layout.entry(self.key), ignore_errors=True)
            os.rename(os.path.join(quarantine, name), self.layout.entry(self.key))
        for name, (path, _read) in self.files.items():
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            self._write(path, self.contents[name])


def main() -> None:
    """Runs until atheris ends."""
    import atheris

    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        target = RecordTarget(folder)
        atheris.instrument_all()
        atheris.Setup(sys.argv, target.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
