"""A store with one kind of artifacts, and a client that has never seen it: what is proved for all kinds alike."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

from support import note_kind, sample_ops
from support.kernels.registries import Registry
from support.remote.nodes import Nodes
from support.remote.withdrawing import withdraw_release

from opforge.builders import load_op
from opforge.builders.lookup import finder
from opforge.errors import OpforgeError
from opforge.packages.form import version
from opforge.packages.installed.layout import Root
from opforge.packages.registry import install_release, selection
from opforge.remote import blobs, kinds, remotes, statements, topics, withdrawal_lists
from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores import open_store


class Shop:
    """A store in a folder with what was published there."""

    kind: str
    genuine: set[bytes]
    """Everything that was ever published: a client must accept nothing else."""

    def __init__(self, scratch, monkeypatch):
        self.scratch, self.patch, self._clients = scratch, monkeypatch, itertools.count()
        monkeypatch.setenv("XDG_CONFIG_HOME", str(scratch / "config"))
        monkeypatch.setenv("OPFORGE_CACHE_DIR", str(scratch / "cache"))
        self.genuine = set()

    def files(self):
        """Returns the paths of the store's files; blobs are last."""
        paths = [path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
        return sorted(paths, key=lambda path: ("blobs" in path.parts, str(path)))

    def fresh(self):
        """Makes this process a client that remembers nothing; returns a folder of its own."""
        folder = self.scratch / f"client-{next(self._clients)}"
        for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
            self.patch.setenv(name, str(folder / name))
        return folder

    def take(self, url=""):
        """Returns what a client gets from the store that has never seen it; None if it is refused with a reason."""
        try:
            return self._take(self.fresh(), url or self.url)
        except OpforgeError as error:
            assert str(error) and "Traceback" not in str(error)
            return None


class OpShop(Shop):
    """An op of C, which is compiled once."""

    kind = "op"

    def __init__(self, scratch, monkeypatch):
        super().__init__(scratch, monkeypatch)
        self.nodes = Nodes(scratch / "nodes", monkeypatch)
        self.builder = sample_ops.plain_op(scratch / "op")()
        self.folder, self.url = self.nodes.folder / "remote", self.nodes.url
        self.entry = self.nodes.built(self.builder)
        self.genuine = {Path(self.entry.library).read_bytes()}
        self.store = self.nodes.store

    def publish(self):
        """Publishes the op again."""
        self.nodes.push(self.entry)

    publish_again = publish

    def withdraw(self):
        """Withdraws another entry: the list of the key is written anew."""
        said = withdrawal_lists.Withdrawal(withdrawal_lists.LOADING, "wrong")
        name = f"op:{next(self._clients):032x}-00000000"
        withdrawal_lists.publish(self.store, keys.signer("ci"), "ci", {name: said})

    def _take(self, folder, url):
        self.patch.setenv("OPFORGE_REMOTES", url)
        store = self.nodes.enter(folder.name)
        self.patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        entry = load_op.stored_entry(finder.Finder(self.builder.spec(), store, asks=True))
        return Path(entry.library).read_bytes() if entry else None


class PackageShop(Shop):
    """A package of Python alone, in two versions."""

    kind = "package"

    def __init__(self, scratch, monkeypatch):
        super().__init__(scratch, monkeypatch)
        self.fresh()
        self.registry = Registry(scratch)
        self.folder, self.url, self.store = self.registry.path, self.registry.url, self.registry.store
        self._numbers = itertools.count(1)
        self.publish()
        self.publish()

    def publish(self):
        """Publishes the next version."""
        number = next(self._numbers)
        text = f"VALUE = {number}\n"
        self.genuine.add(text.encode())
        self.last = self.registry.packed(number=str(number), text=text)
        self.publish_again()

    def publish_again(self):
        """Publishes the newest version, whatever the store has of it."""
        from opforge.packages.registry import publish

        publish.publish(self.store, self.last, keys.signer("ci"))

    def withdraw(self):
        """Withdraws the first version, with another reason each time."""
        withdraw_release(self.store, "acme/plain@1", f"reason {next(self._clients)}")

    def _take(self, folder, url):
        choice = selection.choose("acme/plain", version.ANY, selection.sources([url]))
        release = install_release.install_release(Root(str(folder / "root"), "folder"), choice)[0]
        (part,) = release.variants
        return Path(part.folder, "__init__.py").read_bytes()


class NoteShop(Shop):
    """Notes: the kind that tests add, read by the functions that all kinds share."""

    kind = note_kind.NAME

    def __init__(self, scratch, monkeypatch):
        super().__init__(scratch, monkeypatch)
        note_kind.register(monkeypatch)
        self.folder = scratch / "remote"
        self.folder.mkdir()
        self.url = f"file://{self.folder}"
        self.store = open_store(self.url)
        public = keys.create("ci")
        trust_file.write(trust_file.read()._replace(keys=(trust_file.TrustedKey(public, ("note:*",)),)))
        self._numbers = itertools.count(1)
        self.publish()
        self.publish()

    def publish(self):
        """Publishes the next note."""
        number = next(self._numbers)
        self.genuine.add(b"note %d" % number)
        self.last = number
        self.publish_again()

    def publish_again(self):
        """Publishes the newest note, whatever the store has of it."""
        note_kind.publish(self.store, "greetings", self.last, b"note %d" % self.last, keys.signer("ci"))

    def withdraw(self):
        """Withdraws the first note, with another reason each time."""
        note_kind.withdraw(self.store, "greetings", 1, f"reason {next(self._clients)}", keys.signer("ci"))

    def _take(self, folder, url):
        remote = remotes.parse(url)
        store = open_store(remote.url)
        listing = topics.read_named(store, "note", "greetings")
        usable = [*listing.statements] if listing else []
        if not usable:
            return None
        label = max(usable)
        digest = listing.statements[label].digest
        stored = store.get(statements.name_of(digest), statements.MAX_BYTES)
        try:
            signed = statements.read_file(stored.data if stored else b"", digest)
            signers = trust_file.read().signers("it", signed.data, signed.signatures)
            stated = statements.parse_as(signed.data, "note", "greetings")
            trust_file.allowed(signers, "note:greetings", "it")
            if kinds.of("note").offer(stated).label != label:
                return None
            with tempfile.TemporaryDirectory() as scratch, open(os.path.join(scratch, "blob"), "w+b") as file:
                (tree,) = stated.trees
                store.download(tree.blob.name, file, tree.blob.size)
                blobs.unpack(file, tree, os.path.join(scratch, "tree"))
                return Path(scratch, "tree", "note.txt").read_bytes()
        except (statements.UnreadableStatement, blobs.BlobError):
            return None


SHOPS = {shop.kind: shop for shop in (OpShop, PackageShop, NoteShop)}
