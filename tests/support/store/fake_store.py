"""A store whose entries are written by hand and published as a build publishes them. Nothing is compiled."""

from __future__ import annotations

import errno
import hashlib
import os
import time

from opforge.cache import current_store, single_flight, staging
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import key_of
from opforge.cache.layout import SWEPT, Layout
from opforge.cache.records.entry import read_record
from opforge.cache.records.inputs import Dependency, Inputs
from opforge.cache.single_flight import BuildResult
from opforge.cache.store import Store
from opforge.fast_path.lookup import INTERFACE

ME = frozenset({os.geteuid()})
TRUSTED = ("torch", "python", "system")
LOADABLE = {
    "requires": {},
    "exports": ["value"],
    "floors": {},
    "needs": [],
    "python_module": False,
    "torch_target": "",
    "user_flags": {},
    "interface": INTERFACE,
    "built_with_torch": "",
    "machine": os.uname().machine,
    "portable": False,
    "shims": [],
}
"""The fields of a record that a look-up requires."""


def write_result(folder, plan_key, inputs, content, op, components=(), stamps=(), **record):
    """Writes a library with `content` into `folder`/entry, as a build does; returns the BuildResult.

    `record` are further fields of the record.
    """
    key = inputs.result_key(plan_key)
    finished = os.path.join(folder, "entry")
    os.mkdir(finished)
    sha256 = hashlib.sha256(content).hexdigest()
    record = {"op": op, "abi": "c", "target": "cpu:x86-64-v3", "seconds": 1.5, **LOADABLE, **record}
    record |= {"file": f"{op}-{key[:16]}.so", "size": len(content), "sha256": sha256}
    library = os.path.join(finished, record["file"])
    with open(library, "wb") as file:
        file.write(content)
    os.chmod(library, 0o500)
    build = {"components": dict(components), "at": time.time(), "steps": [], "output": ""}
    return BuildResult(finished, record, inputs.without(TRUSTED).checked_singly(), inputs, dict(stamps), build)


def publish_entry(store, plan_key, description, root_paths, inputs, content, op, **fields):
    """Publishes an entry as a build does; returns the name of its folder. `fields` are those of `write_result`."""
    folder = staging.new_folder(store.layout, plan_key)
    result = write_result(folder, plan_key, inputs, content, op, **fields)
    match = single_flight.keep(store, plan_key, description, root_paths, result)
    os.rmdir(folder)
    return match.entry.key


class FakeStore:
    """A store to which `add` publishes entries. The folder `sources` holds the files that their inputs name."""

    def __init__(self, root, sources):
        current_store.prepare(str(root), ME)
        os.makedirs(sources, exist_ok=True)
        self.store, self.layout = Store(str(root), ME), Layout(str(root))
        os.utime(self.layout.path(SWEPT), (1, 1))  # it was made long ago
        self.root_paths = {"own": str(sources)}

    def add(self, op="relu", text="int a;", target="cpu:x86-64-v3", size=1000, **components):
        """Publishes an entry of an op with one source and a library of `size` bytes; returns its key."""
        path = os.path.join(self.root_paths["own"], f"{op}.cpp")
        with open(path, "w") as file:
            file.write(text)
        components = {"op": op, "target": target, "compile_flags": ["-O3"], "toolchain": {"version": "g++ 12"}} | (
            components
        )
        inputs = Inputs((Dependency("own", f"{op}.cpp", Disk().digest(path)),))
        content = (f"{op} {text} " * size).encode()[:size]
        description, fields = key_of(["description", op]), {"components": components, "target": target}
        return publish_entry(
            self.store, key_of(components), description, self.root_paths, inputs, content, op, **fields
        )

    def plan(self, op):
        """Returns the key of the plan of an op that `add` has published without further components."""
        (plan,) = {record["plan"] for key in self.entry_keys() if (record := self._record(key))["op"] == op}
        return plan

    def _record(self, key):
        return read_record(self.layout.entry(key))

    def entry_keys(self):
        """Returns the keys of the entries that are stored."""
        return set(os.listdir(self.layout.path("entries")))

    def files(self, area):
        """Returns the names of all files below an area, such as "plans"."""
        return sorted(name for _parent, _folders, names in os.walk(self.layout.path(area)) for name in names)

    def library(self, key):
        """Returns the path of an entry's library."""
        folder = self.layout.entry(key)
        return next(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".so"))

    def damage(self, key):
        """Changes one byte of an entry's library and leaves its size alone."""
        path = self.library(key)
        os.chmod(path, 0o700)
        with open(path, "r+b") as file:
            file.write(b"#")

    def use(self, key, at):
        """Sets the time of every pointer of a plan to an entry, as a look-up does."""
        for parent, _folders, names in os.walk(self.layout.path("plans")):
            for name in names:
                if name.startswith(key):
                    os.utime(os.path.join(parent, name), (at, at))

    def deny_access(self, monkeypatch, key):
        """Makes an entry one that this user may neither list nor move, as an entry that `sudo` has left."""
        folder, access = self.layout.entry(key), os.access

        def deny(function):
            def denied(path, *arguments, **options):
                if path == folder or (isinstance(path, str) and os.path.dirname(path) == folder):
                    raise PermissionError(13, "Permission denied", path)
                return function(path, *arguments, **options)

            return denied

        for name in ("scandir", "listdir", "open", "rename"):
            monkeypatch.setattr(os, name, deny(getattr(os, name)))
        monkeypatch.setattr(os, "access", lambda path, mode: path != folder and access(path, mode))

    def put_in_image_layer(self, monkeypatch):
        """Makes renaming an entry fail, as overlayfs does for the folders of an image's lower layer."""
        entries, rename = self.layout.path("entries"), os.rename

        def refuse(source, target):
            if os.path.dirname(source) == entries:
                raise OSError(errno.EXDEV, "Invalid cross-device link", source)
            rename(source, target)

        monkeypatch.setattr(os, "rename", refuse)
