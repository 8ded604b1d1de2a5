"""A store whose entries are made by hand, as a build would publish them; nothing is compiled."""

from __future__ import annotations

import hashlib
import os
import time

from opforge.cache import layout, publishing, staging
from opforge.cache.disk import Disk
from opforge.cache.inputs import Dependency, Inputs
from opforge.cache.keys import key_of, result_key
from opforge.cache.publishing import Product
from opforge.cache.store import Store

ME = frozenset({os.geteuid()})


class MadeUpStore:
    """`add` publishes an entry and gives back its result key; `sources` is a folder that its inputs lie in."""

    def __init__(self, root, sources):
        layout.prepare(str(root), ME)
        os.makedirs(sources, exist_ok=True)
        self.store, self.layout = Store(str(root), ME), layout.Layout(str(root))
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
        result = result_key(plan, [("own", f"{op}.cpp", digest)])
        folder = staging.begin(self.layout, plan)
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
        product = Product(result, finished, binary, inputs, {}, manifest)
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

    def held(self):
        """The results that are stored."""
        return set(os.listdir(self.layout.path("entries")))

    def files(self, area):
        return sorted(name for _at, _folders, names in os.walk(self.layout.path(area)) for name in names)
