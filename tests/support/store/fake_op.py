"""An op with one source, whose build writes a library without compiling, in a store of its own."""

from __future__ import annotations

import os

from support import text_files
from support.store.fake_store import ME, write_result

from opforge.cache import current, publish
from opforge.cache.filesystem.disk import Disk
from opforge.cache.records.inputs import Dependency, Inputs
from opforge.cache.store import Store

LIBRARY = b"not really a library" * 10


class FakeOp:
    """`build` builds the op, or finds that another builder did; `get` looks it up."""

    def __init__(self, folder, library=LIBRARY):
        self.folder, self.library, self.builds = folder, library, 0
        """`builds` counts how often the op was built."""
        (folder / "src").mkdir()
        self.root_paths = {"own": str(folder / "src")}
        self.edit("int a;")
        current.prepare(str(folder / "store"), ME)
        self.store = Store(str(folder / "store"), ME)
        self.rejected = []
        """What the last `get` did not use."""

    def edit(self, text):
        """Writes the source."""
        text_files.write(self.folder / "src", "a.cpp", text)

    def execute(self, folder):
        """Builds in `folder`, as publish.build requests it."""
        self.builds += 1
        digest = Disk().digest(str(self.folder / "src" / "a.cpp"))
        return write_result(folder, "plan", Inputs((Dependency("own", "a.cpp", digest),)), self.library, "a")

    def build(self, **options):
        """Calls publish.build; `options` replace its arguments."""
        arguments = {
            "plan_key": "plan",
            "description": "description",
            "label": "a",
            "root_paths": self.root_paths,
            "execute": self.execute,
            "look_again": lambda: None,
            "state": "s",
            **options,
        }
        return publish.build(self.store, **arguments)

    def get(self, paranoid=False):
        """Looks the op up by its plan."""
        self.rejected = []
        return self.store.get("plan", self.root_paths, self.rejected, paranoid)

    def match(self, store=None, rejected=None, trusted_roots=(), own=False):
        """Looks the op up by its description, in the layers of `store`."""
        rejected = [] if rejected is None else rejected
        store = store or self.store
        return store.match("description", lambda _binary: None, self.root_paths, trusted_roots, rejected, own)

    def reasons(self):
        """Returns why the last `get` did not use what it saw."""
        return [entry.reason for entry in self.rejected]

    def stat_records(self):
        """Returns the paths of the op's stat records."""
        folder = self.store.layout.plan("plan")
        return [os.path.join(folder, name) for name in os.listdir(folder)]

    def staging_folders(self):
        """Returns the names in the store's staging folder."""
        return os.listdir(self.store.layout.path("staging"))

    def as_layer(self, folder):
        """Returns a store in `folder` that has this op's store as a layer."""
        current.prepare(str(folder), ME)
        return Store(str(folder), ME, (str(self.store.layout.root),))
