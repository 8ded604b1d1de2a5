"""One artifact of each kind, as machines make it, publish it, fetch it and use it: what is proved for all kinds alike.

A new kind joins by a class here and a line in ARTIFACTS.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from typing import Any

from click.testing import CliRunner
from support import sample_ops, tuned_ops
from support.compiled_graphs import Machines, area_of, put
from support.jits import pages
from support.kernels.registries import Registry
from support.tuned_ops import FLOAT32

from opforge.builders import load_op
from opforge.builders.lookup import finder, tuned
from opforge.cache.current_store import current_store
from opforge.cache.keys import bytes_digest, canonical
from opforge.cache.layout import entry_name
from opforge.cache.records.entry import with_record_key
from opforge.cli import group
from opforge.errors import OpforgeError
from opforge.jits.kind import JIT
from opforge.packages.form import version
from opforge.packages.installed import releases
from opforge.packages.registry import install_release, selection
from opforge.remote import contents, kinds, publish, remotes
from opforge.remote.op_statements import OP
from opforge.remote.signatures import keys
from opforge.remote.tuned_statements import TUNED

OLDER, NEWER = "older", "newer"
BELL = "bell"
"""The label of a page that every store has: a machine that asks for it reads the lists of withdrawals."""


def run(*arguments: Any, code: int = 0) -> str:
    """Runs a command of opforge; returns what it prints."""
    outcome = CliRunner().invoke(group, [*map(str, arguments)])
    assert outcome.exit_code == code, (outcome.output, outcome.exception)
    return outcome.output


class Artifact(ABC):
    """Something of a kind that one machine publishes, and others use."""

    kind: str
    name = ""
    """What tests call it; empty for its kind."""
    has_blobs = True

    def __init__(self, nodes: Any, folder: Any, monkeypatch: Any) -> None:
        """Takes the machines, whose key `ci` may sign everything, and a new folder for what is made."""
        self.nodes, self.folder, self.patch = nodes, folder, monkeypatch
        folder.mkdir()
        self.remote = remotes.parse(nodes.url)

    def enter(self, name: str) -> None:
        """Makes this process the machine `name`."""
        self.nodes.enter(name)
        self.patch.setenv("XDG_STATE_HOME", str(self.nodes.folder / f"{name}-state"))

    def enter_builder(self) -> None:
        """Makes this process the machine that has made what `publish` publishes."""
        self.enter("builder")

    @abstractmethod
    def publish(self, which: str = NEWER, key: str = "ci") -> None:
        """Makes the artifact and publishes it."""

    @abstractmethod
    def use(self) -> str:
        """Returns what this machine uses of what was published: "older", "newer", or "" for none of it."""

    def save_again(self, key: str) -> None:
        """Publishes what this machine has of the kind, by a key of its own."""
        run("publish", self.nodes.url, f"{self.kind}:*", "--key", key)

    def items(self) -> list[contents.Item]:
        """Returns what the store has of the kind."""
        return [item for item in contents.items(self.nodes.store, self.kind) if item.name != f"{pages.ADAPTER}/{BELL}"]

    def title(self) -> str:
        """Returns what withdrawals call the only one that the store has."""
        (item,) = self.items()
        kind = kinds.of(self.kind)
        assert kind
        return kind.title(item.name, item.label)

    def ring(self) -> None:
        """Publishes what `ask` asks for."""
        self.enter("bell")
        pages.keep({"bell": {"code": b"bell"}}, BELL)
        run("publish", self.nodes.url, f"jit:{pages.ADAPTER}/{BELL}", "--key", "ci")

    def ask(self) -> None:
        """Asks the store for something else, so that this machine reads the lists of withdrawals."""
        assert pages.entries(BELL).get("bell")


class Op(Artifact):
    """A plain op of C; the newer one has another library of the same inputs."""

    kind = "op"

    def __init__(self, nodes: Any, folder: Any, monkeypatch: Any) -> None:
        super().__init__(nodes, folder, monkeypatch)
        self.builder = sample_ops.plain_op(folder / "op")()
        self._entries: dict[str, str] = {}

    def _entry(self, which: str) -> Any:
        self.enter("builder")
        with self.patch.context() as patch:
            patch.delenv("OPFORGE_REMOTES", raising=False)
            entry = self.builder.build()
        self._entries[entry.key] = NEWER
        if which == NEWER:
            return entry.folder, entry.record
        with open(entry.library, "rb") as file:
            content = file.read() + b"older"  # a library may have anything at its end
        record = with_record_key({**entry.record, "sha256": bytes_digest(content), "size": len(content)})
        name = entry_name(record["key"], record["sha256"])
        copy = os.path.join(self.folder, name)
        shutil.copytree(entry.folder, copy)
        for path, data in ((record["file"], content), ("record.json", canonical(record))):
            os.chmod(os.path.join(copy, path), 0o700)
            with open(os.path.join(copy, path), "wb") as file:
                file.write(data)
        self._entries[name] = OLDER
        return copy, record

    def publish(self, which: str = NEWER, key: str = "ci") -> None:
        folder, record = self._entry(which)
        publish.push(self.nodes.store, self.remote, OP, OP.at(folder, record["description"]), keys.signer(key))

    def use(self) -> str:
        entry = load_op.stored_entry(finder.Finder(self.builder.spec(), current_store(), asks=True))
        return self._entries[entry.key] if entry else ""

    def save_again(self, key: str) -> None:
        run("publish", self.nodes.url, "--all", "--key", key)


class Tuned(Artifact):
    """A tuning result of an op that every machine has. It has no blob, and one of a key takes the other's place.

    The op is built once for all tests of a process, and is each machine's by a layer.
    """

    kind, has_blobs = "tuned", False

    def __init__(self, nodes: Any, folder: Any, monkeypatch: Any) -> None:
        super().__init__(nodes, folder, monkeypatch)
        path, self.op_class = tuned_ops.layer_with_op(folder.parents[1] / "tuned-op", "tuned_artifact")
        monkeypatch.setenv("OPFORGE_CACHE_LAYERS", path)

    def publish(self, which: str = NEWER, key: str = "ci") -> None:
        self.enter("builder")
        with self.patch.context() as patch:
            patch.delenv("OPFORGE_REMOTES", raising=False)
            entry = self.op_class().load().__entry__
        row = tuned_ops.row({"block": 128 if which == OLDER else 512})
        self._result = tuned_ops.result(entry, row)
        publish.push(self.nodes.store, self.remote, TUNED, TUNED.of(self._result), keys.signer(key))

    def enter_builder(self) -> None:
        self.enter("builder")
        tuned_ops.store(current_store().layout.root, self._result)

    def use(self) -> str:
        tuned.reset()
        return {128: OLDER, 512: NEWER}.get(self.op_class().load().block(FLOAT32, 1000), "")


class Jit(Artifact):
    """A page of a JIT with one entry; the newer one has other bytes of the same key."""

    kind = "jit"

    def __init__(self, nodes: Any, folder: Any, monkeypatch: Any) -> None:
        super().__init__(nodes, folder, monkeypatch)
        self._folders: dict[str, str] = {}

    def publish(self, which: str = NEWER, key: str = "ci") -> None:
        self.enter("builder" if which == NEWER else "other-builder")
        if which not in self._folders:
            with self.patch.context() as patch:
                patch.delenv("OPFORGE_REMOTES", raising=False)
                pages.keep({"key": {"code": which.encode()}})
            (one,) = JIT.stored(current_store().layout)
            self._folders[which] = one.path
        publish.push(self.nodes.store, self.remote, JIT, JIT.at(self._folders[which]), keys.signer(key))

    def use(self) -> str:
        found = pages.entries().get("key")
        return found["code"].decode() if found else ""


class Compiled(Artifact):
    """A page of torch.compile that holds no graph, as `opforge.compiled` uses it; the newer one has other parts."""

    kind, name = "jit", "compiled"

    def __init__(self, nodes: Any, folder: Any, monkeypatch: Any) -> None:
        super().__init__(nodes, folder, monkeypatch)
        from opforge.graphs import topic

        self.where = topic.of("pair")
        self.machines = Machines(nodes.folder, monkeypatch)
        self._digests: dict[str, str] = {}

    def enter(self, name: str) -> None:
        self.machines.enter(name)
        self.patch.setenv("XDG_STATE_HOME", str(self.nodes.folder / f"{name}-state"))

    def publish(self, which: str = NEWER, key: str = "ci") -> None:
        if which not in self._digests.values():
            self.machines.enter(which)
            path = put(self.where, made=1 if which == OLDER else 2)
            self._digests[path.name] = which
            shutil.copytree(path, self.folder / path.name)
        (name,) = (name for name, made in self._digests.items() if made == which)
        publish.push(self.nodes.store, self.remote, JIT, JIT.at(str(self.folder / name)), keys.signer(key))

    def enter_builder(self) -> None:
        self.enter("builder")
        area = area_of(self.machines.folder / "builder" / "store")
        for name in self._digests:
            shutil.copytree(self.folder / name, area / name)

    def use(self) -> str:
        import opforge
        from opforge.jits import page

        with opforge.compiled("pair") as graphs:
            pass
        names = [os.path.basename(path) for path in page.folders(current_store().layout, f"{self.where.key}.")]
        used = {self._digests[name] for name in names} if graphs.found else set()
        return NEWER if NEWER in used else OLDER if used else ""


class Package(Artifact):
    """A package of Python alone; the newer one has a later version."""

    kind = "package"

    def __init__(self, nodes: Any, folder: Any, monkeypatch: Any) -> None:
        super().__init__(nodes, folder, monkeypatch)
        self._registry = Registry.__new__(Registry)  # whose key and store are those of the nodes
        self._registry.scratch, self._registry._count = folder, 0
        self._packed: dict[str, str] = {}

    def enter(self, name: str) -> None:
        from opforge.packages.installed.layout import Root

        super().enter(name)
        self.root = Root(str(self.nodes.folder / f"{name}-installed"), "folder")
        self.patch.setenv("OPFORGE_KERNEL_PATH", self.root.path)

    def publish(self, which: str = NEWER, key: str = "ci") -> None:
        from opforge.packages.registry import publish as registry

        self.enter("builder")
        number = "1" if which == OLDER else "2"
        if which not in self._packed:
            self._packed[which] = self._registry.packed(number=number, text=f"VALUE = {number}\n")
        registry.publish(self.nodes.store, self._packed[which], keys.signer(key))

    def ask(self) -> None:
        sources = selection.sources([self.nodes.url])
        for _one in selection.releases("acme/plain", version.ANY, sources):
            pass
        install_release.note_withdrawals(sources, self.root)

    def use(self) -> str:
        from opforge.packages.load import get_kernel

        if not list(releases.matching(self.root, "acme/plain", version.ANY)):
            try:
                choice = selection.choose("acme/plain", version.ANY, selection.sources([self.nodes.url]))
                install_release.install_release(self.root, choice)
            except OpforgeError:
                return ""
        get_kernel.reset()
        try:
            return {1: OLDER, 2: NEWER}[get_kernel.get_kernel("acme/plain").VALUE]
        except OpforgeError:
            return ""


ARTIFACTS = (Op, Tuned, Jit, Compiled, Package)
"""Those whose statements a store holds. A program is a file that carries its own: tests/compile/programs."""
