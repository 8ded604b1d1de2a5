"""Machines that share a remote: each node is a cache folder of its own, with what it remembers."""

from __future__ import annotations

import os

from opforge.builders import load_op
from opforge.builders.lookup import finder
from opforge.cache import current_store
from opforge.remote import publish, remotes, statements, topics
from opforge.remote.op_statements import OP
from opforge.remote.signatures import keys, signing, trust_file
from opforge.remote.stores import open_store

EVERYTHING = ("op:*", "package:*/*")
"""What a key may sign that is trusted for all there is."""


class Nodes:
    """A remote in a folder, a key that is trusted, and nodes that are entered in turn."""

    def __init__(self, folder, monkeypatch):
        self.folder, self._patch = folder, monkeypatch
        os.makedirs(folder / "remote")
        self.url = f"file://{folder}/remote"
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        monkeypatch.setenv("OPFORGE_REMOTES", self.url)
        self.public = keys.create("ci")
        self.trust(self.public)

    def trust(self, public, *others, **fields):
        """Writes a trust file that holds these keys alone; `fields` are those of the first one."""
        first = trust_file.TrustedKey(public, **{"scopes": EVERYTHING, **fields})
        entries = (first, *(trust_file.TrustedKey(other, EVERYTHING) for other in others))
        trust_file.write(trust_file.read()._replace(keys=entries))

    def trust_file(self):
        """Returns the path of the trust file."""
        return self.folder / "config" / "opforge" / "trust.json"

    def enter(self, name):
        """Makes this process one on the node `name`: with its own cache folder and memory."""
        self._patch.setenv("OPFORGE_CACHE_DIR", str(self.folder / name))
        self._patch.setenv("XDG_CACHE_HOME", str(self.folder / f"{name}-caches"))
        current_store.reset()
        return current_store.current_store()

    @property
    def store(self):
        """The remote's store."""
        return open_store(self.url)

    def push(self, entry, remote=None, signer=None):
        """Publishes an entry for the description by which it was built."""
        remote = remote or remotes.parse(self.url)
        signer = None if remote.is_unsigned else signer or keys.signer("ci")
        return publish.push(
            open_store(remote.url), remote, OP, OP.at(entry.folder, entry.record["description"]), signer
        )

    def built(self, builder, node="builder"):
        """Builds an op on a node without remotes, publishes it, and returns its entry."""
        self.enter(node)
        with self._patch.context() as patch:
            patch.delenv("OPFORGE_REMOTES")
            entry = builder.build()
        self.push(entry)
        return entry

    def fetch(self, builder, node="node"):
        """Returns (entry or None, rejected) of a look-up on a node that may ask the remotes, and builds nothing."""
        look_up = finder.Finder(builder.spec(), self.enter(node), asks=True)
        return load_op.stored_entry(look_up), look_up.rejected

    def offers_file(self, entry):
        """Returns the path of the file that holds the offers of an entry."""
        return self.folder / "remote" / OP.topic_file(entry.record["description"])

    def blob_file(self, entry):
        """Returns the path of the blob of an entry."""
        (item,) = topics.read_frame(self.offers_file(entry).read_bytes())
        return self.folder / "remote" / OP.parse(item.data).tree.blob.name

    def put_offer(self, entry, data, secret_name="ci", signatures=None):
        """Replaces the offers of an entry by one with these bytes, signed by a key or with given signatures."""
        if signatures is None:
            signatures = (signing.sign(data, keys.read(secret_name)),)
        self.offers_file(entry).write_bytes(topics.frame([statements.Signed(data, tuple(signatures))]))


def reasons(rejected):
    """Returns the reasons of rejected entries as one text."""
    return "\n".join(map(str, rejected))
