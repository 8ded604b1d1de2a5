"""A store whose entries are made by hand, as a build would publish them; nothing is compiled."""

from __future__ import annotations

import errno
import hashlib
import os
import time

from support import text_files

from opforge.builders.planner import make_plan
from opforge.builders.spec.description import describe
from opforge.builders.spec.op_spec import root_paths
from opforge.builders.toolchains import find_toolchain
from opforge.cache import current, staging
from opforge.cache import publish as publishing
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import entry_key, key_of
from opforge.cache.layout import Layout
from opforge.cache.maintenance import listing
from opforge.cache.publish import BuildResult
from opforge.cache.records.inputs import Dependency, Inputs
from opforge.cache.store import Store

ME = frozenset({os.geteuid()})
LIBRARY = b"not really a library" * 10


class MadeUpStore:
    """`add` publishes an entry and gives back its result key; `sources` is a folder that its inputs lie in."""

    def __init__(self, root, sources):
        current.prepare(str(root), ME)
        os.makedirs(sources, exist_ok=True)
        self.store, self.layout = Store(str(root), ME), Layout(str(root))
        self.roots = {"own": str(sources)}

    def add(self, op="relu", text="int a;", target="cpu:x86-64-v3", size=1000, **components):
        with open(os.path.join(self.roots["own"], f"{op}.cpp"), "w") as file:
            file.write(text)
        components = {
            "op": op,
            "target": target,
            "compile_flags": ["-O3"],
            "toolchain": {"version": "g++ 12"},
        } | components
        plan, digest = key_of(components), Disk().digest(os.path.join(self.roots["own"], f"{op}.cpp"))
        result = entry_key(plan, [("own", f"{op}.cpp", digest)])
        folder = staging.new_folder(self.layout, plan)
        finished = os.path.join(folder, "entry")
        os.mkdir(finished)
        content = (f"{op} {text} " * size).encode()[:size]
        with open(os.path.join(finished, f"{op}.so"), "wb") as file:
            file.write(content)
        os.chmod(os.path.join(finished, f"{op}.so"), 0o500)
        binary = {"file": f"{op}.so", "size": size, "sha256": hashlib.sha256(content).hexdigest(), "op": op}
        binary |= {"abi": "c", "target": target}
        manifest = {"op": op, "components": components, "built": {"at": time.time(), "seconds": 1.5, "steps": []}}
        inputs = Inputs((Dependency("own", f"{op}.cpp", digest),))
        product = BuildResult(result, finished, binary, inputs, {}, manifest)
        publishing.keep(self.store, plan, key_of(["description", op]), self.roots, product)
        os.rmdir(folder)
        return result

    def library(self, result):
        folder = self.layout.entry(result)
        return next(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".so"))

    def spoil(self, result):
        """Change one byte of the library and leave its size alone."""
        path = self.library(result)
        os.chmod(path, 0o700)
        with open(path, "r+b") as file:
            file.write(b"#")

    def use(self, result, at):
        """Stamp every ticket of an entry, as a look-up does."""
        for folder, _folders, names in os.walk(self.layout.path("plans")):
            for name in names:
                if name.startswith(result):
                    os.utime(os.path.join(folder, name), (at, at))

    def close(self, monkeypatch, result):
        """Make an entry one that a user who is not root could neither list nor move: what `sudo` leaves in a store."""
        folder, scandir, access, rename = self.layout.entry(result), os.scandir, os.access, os.rename

        def refusing(do):
            def refused(path, *arguments, **options):
                if path == folder:
                    raise PermissionError(13, "Permission denied", path)
                return do(path, *arguments, **options)

            return refused

        monkeypatch.setattr(os, "scandir", refusing(scandir))
        monkeypatch.setattr(os, "rename", refusing(rename))
        monkeypatch.setattr(os, "access", lambda path, mode: path != folder and access(path, mode))
        monkeypatch.setattr(listing, "read_manifest", lambda layout, one: None)

    def bake(self, monkeypatch):
        """Make the entries a lower layer of an image, whose folders overlayfs does not rename."""
        entries, rename = self.layout.path("entries"), os.rename

        def renamed(source, target):
            if os.path.dirname(source) == entries:
                raise OSError(errno.EXDEV, "Invalid cross-device link", source)
            rename(source, target)

        monkeypatch.setattr(os, "rename", renamed)

    def held(self):
        """The results that are stored."""
        return set(os.listdir(self.layout.path("entries")))

    def files(self, area):
        return sorted(name for _at, _folders, names in os.walk(self.layout.path(area)) for name in names)


class World:
    """A store, one source and a producer for it."""

    def __init__(self, folder, library=LIBRARY):
        self.folder, self.library, self.built = folder, library, 0
        (folder / "src").mkdir()
        self.roots = {"own": str(folder / "src")}
        text_files.write(folder / "src", "a.cpp", "int a;")
        current.prepare(str(folder / "store"), ME)
        self.store = Store(str(folder / "store"), ME)

    def inputs(self):
        digest = Disk().digest(str(self.folder / "src" / "a.cpp"))
        return Inputs((Dependency("own", "a.cpp", digest),))

    def execute(self, folder):
        self.built += 1
        inputs = self.inputs()
        result = hashlib.sha256(inputs.files[0].digest.encode()).hexdigest()[:32]
        finished = os.path.join(folder, "entry")
        os.mkdir(finished)
        path = os.path.join(finished, "a.so")
        with open(path, "wb") as file:
            file.write(self.library)
        os.chmod(path, 0o500)
        digest = hashlib.sha256(self.library).hexdigest()
        binary = {"file": "a.so", "size": len(self.library), "sha256": digest, "abi": "c"}
        return BuildResult(result, finished, binary, inputs, {}, {"op": "a"})

    def build(self, **options):
        arguments = {
            "plan_key": "plan",
            "description": "description",
            "label": "a",
            "root_paths": self.roots,
            "execute": self.execute,
            "look_again": lambda: None,
            "state": "s",
            **options,
        }
        return publishing.build(self.store, **arguments)

    def get(self, paranoid=False):
        self.trace = []
        return self.store.get("plan", self.roots, self.trace, paranoid)

    def reasons(self):
        return [one.reason for one in self.trace]

    def tickets(self):
        folder = self.store.layout.plan("plan")
        return [os.path.join(folder, name) for name in os.listdir(folder)]

    def staged(self):
        return os.listdir(self.store.layout.path("staging"))

    def as_layer(self, folder):
        """A store of the user's, in `folder`, before which this one is a layer."""
        current.prepare(str(folder), ME)
        return Store(str(folder), ME, (str(self.store.layout.root),))


def publish(builder, store, content="a library", headers=("value.h",)):
    """Publish an entry for a builder as it is now, as a build would, with `content` for its library.

    Its inputs are the builder's sources and the `headers` of its own folder. Gives back the result key.
    """
    from opforge.builders.run.provenance import Provenance

    current.prepare(str(store.layout), ME)
    toolchain = find_toolchain(builder.spec(), store)
    plan, places = make_plan(builder.spec(), toolchain), root_paths(builder.spec())
    known = Provenance(places, store.disk)
    paths = [os.path.join(places[one.root], one.path) for one in plan.sources]
    paths += [os.path.join(places["own"], name) for name in headers]
    reads = [known.place(path) for path in paths]
    search = [os.path.join(places[one.root], one.path) for one in plan.include]
    inputs, stamps = known.collect(reads, search), known.stamps(reads)
    result = entry_key(plan.key, [(one.root, one.path, one.digest) for one in inputs.files])
    folder = staging.new_folder(store.layout, plan.key)
    finished = os.path.join(folder, "entry")
    os.mkdir(finished)
    binary = {"file": f"{plan.op}-{result[:16]}.so", "size": len(content), "op": plan.op, "abi": plan.abi}
    binary |= {"sha256": hashlib.sha256(content.encode()).hexdigest(), "target": plan.target, "requires": {}}
    binary |= {"exports": ["value"], "floors": {}, "needs": [], "python_module": False, "torch_target": ""}
    library = os.path.join(finished, binary["file"])
    with open(library, "w") as file:
        file.write(content)
    os.chmod(library, 0o500)
    manifest = {"op": plan.op, "components": plan.components(), "built": {"at": time.time(), "seconds": 1.5}}
    product = BuildResult(result, finished, binary, inputs, stamps, manifest)
    publishing.keep(store, plan.key, describe(builder.spec()).key, places, product)
    os.rmdir(folder)
    return result
