"""An op with one source, whose build writes a library without compiling, in a store of its own."""

from __future__ import annotations

import os

from support import text_files
from support.store.fake_store import ME, write_result

from opforge.cache import current_store, single_flight
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.records.inputs import Dependency, Inputs
from opforge.cache.store import Fit, Store
from opforge.foundation.remembered_values import FlatStamps

PLAN, DESCRIPTION = key_of("plan"), key_of("description")
LIBRARY = b"not really a library" * 10


class FakeOp:
    """`build` builds the op, or finds that another builder did; `get` looks it up."""

    def __init__(self, folder, library=LIBRARY):
        self.folder, self.library, self.builds = folder, library, 0
        """`builds` counts how often the op was built."""
        (folder / "src").mkdir()
        self.root_paths = {"own": str(folder / "src")}
        self.edit("int a;")
        current_store.prepare(str(folder / "store"), ME)
        self.store = Store(str(folder / "store"), ME)
        self.rejected = ()
        """What the last `get` did not use."""

    def edit(self, text):
        """Writes the source."""
        text_files.write(self.folder / "src", "a.cpp", text)

    def execute(self, folder):
        """Builds in `folder`, as a build does that has the lock."""
        self.builds += 1
        digest = Disk().digest(str(self.folder / "src" / "a.cpp"))
        return write_result(folder, PLAN, Inputs((Dependency("own", "a.cpp", digest),)), self.library, "a")

    def build(self, **options):
        """Builds the op, or waits for the process that does, as `load_op.build`; `options` replace its parts."""
        execute, state = options.pop("execute", self.execute), options.pop("state", "s")
        look_again, read = options.pop("look_again", lambda: None), options.pop("read", FlatStamps)
        named = {"plan_key": PLAN, "description": DESCRIPTION, "root_paths": self.root_paths, **options}
        with single_flight.alone(self.store, named["plan_key"], "a", look_again, state) as match:
            if match is None:
                with single_flight.staged(self.store, named["plan_key"], state, read) as folder:
                    match = single_flight.keep(self.store, result=execute(folder), **named)
        return match.entry

    def get(self):
        """Looks the op up by its plan; returns the entry or None."""
        match, self.rejected = self.store.get(PLAN, self.root_paths)
        return match and match.entry

    def match(self, sources):
        """Looks the op up by its description; returns the entry or None."""
        self.rejected = ()
        for source in sources:
            match, rejected = source.find(DESCRIPTION, lambda _record: Fit(), self.root_paths, self.store.disk)
            self.rejected += rejected
            if match:
                return match.entry
        return None

    def reasons(self):
        """Returns why the last `get` or `match` did not use what it saw."""
        return [entry.reason for entry in self.rejected]

    def pointers(self):
        """Returns the paths of the plan's pointers to entries."""
        folder = self.store.layout.plan(PLAN)
        return [os.path.join(folder, name) for name in os.listdir(folder)]

    def staging_folders(self):
        """Returns the names in the store's staging folder."""
        return os.listdir(self.store.layout.path("staging"))

    def as_layer(self, folder):
        """Returns a store in `folder` that has this op's store as a layer."""
        current_store.prepare(str(folder), ME)
        return Store(str(folder), ME, (str(self.store.layout.root),))
