"""An op whose look-ups are remembered: a store, a fake compiler, and what a new process would find."""

from __future__ import annotations

import copy
import os
import pathlib
import shutil

import pytest
from support import fake_disk, sample_ops
from support.compilers import fake_compiler
from support.store.fake_store import ME
from support.store.published_op import publish_op

from opforge.builders import planner, toolchains
from opforge.builders.declaration import kernel_roots
from opforge.builders.load_op import find
from opforge.builders.lookup import finder
from opforge.builders.toolchains import host
from opforge.builders.toolchains.discovery import probe
from opforge.cache.store import Store
from opforge.foundation import remembered_values


class LookedUpOp:
    """An op with an entry in a store, and a fake compiler that only reports its version."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.patch = folder, monkeypatch
        self.source_folder, self.bin, self.early = folder / "op", folder / "bin", folder / "early"
        self.early.mkdir()
        self.compiler = fake_compiler.create(self.bin)
        monkeypatch.setenv("PATH", f"{self.early}:{self.bin}:/usr/bin:/bin")
        monkeypatch.setattr(host, "CANDIDATES", ("g++",))
        self.plans = 0
        self.real_plan = planner.make_plan
        monkeypatch.setattr(finder, "make_plan", self._plan)
        self.code = folder / "planner.py"
        self.code.touch()
        monkeypatch.setattr(toolchains, "plan_code", lambda spec: (str(self.code),))
        (folder / "mine").mkdir()
        self.mine = kernel_roots.KernelRoot("mine", str(folder / "mine"))
        self.first = kernel_roots.KernelRoot("first", str(folder / "first"))
        self.attributes = {"kernel_roots": [self.first, self.mine], "extra_link_args": ["-fuse-ld=fake"]}
        self.cls = self.declare()

    def declare(self, **attributes):
        """Returns the builder class, with these attributes in addition to earlier ones."""
        self.attributes = {**self.attributes, **attributes}
        return sample_ops.plain_op(self.source_folder, **self.attributes)

    def _plan(self, *arguments):
        self.plans += 1
        return self.real_plan(*arguments)

    def store(self):
        return Store(os.environ["OPFORGE_CACHE_DIR"], ME, disk=fake_disk.LaterDisk())

    def publish(self, content="a library", headers=("value.h",)):
        """Publishes an entry for the op as it is now; returns its key."""
        return publish_op(self.cls(), self.store(), content, headers)

    def find(self):
        """Returns the entry key that a new process would find, or None, and whether it made a plan for it."""
        probe.reset()
        before = self.plans
        entry = find(self.cls().spec(), self.store()).entry
        return entry and entry.key, self.plans > before

    def find_by_content(self):
        """Returns the entry key that a new process would find without memory, or None."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPFORGE_PARANOID", "1")
            return self.find()[0]

    def forget(self):
        """Removes what is remembered."""
        shutil.rmtree(self.folder / "caches", ignore_errors=True)

    def remembered_paths(self):
        """Returns the paths of what is remembered."""
        return sorted(path for folder in remembered_values.folders() for path in pathlib.Path(folder).rglob("*.json"))


def replaced(value, steps, new):
    """Returns a copy of a JSON value in which the value at `steps` is `new`."""
    if not steps:
        return new
    value = copy.copy(value)
    value[steps[0]] = replaced(value[steps[0]], steps[1:], new)
    return value
