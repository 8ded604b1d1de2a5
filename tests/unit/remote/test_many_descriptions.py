"""A remote that holds very many descriptions: no look-up and no publication may ask for more because of them."""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pytest
from support import sample_ops, tiers

from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores.folder import lock, store, tree
from opforge.remote.stores.folder.store import FolderStore

MANY = 100_000 if tiers.is_long() else 1000
LINKS = 30_000
"""How many names one file may have: ext4 allows 65,000."""
CALLS = ("get", "download", "put_if_absent", "put_if_unchanged", "list", "delete")
FILES = ("open", "scandir", "link", "rename", "mkdir", "unlink", "stat", "fsync")


class CountingOs:
    """The module `os`, whose calls on files are counted."""

    def __init__(self, counts):
        self._counts = counts

    def __getattr__(self, name):
        if name in FILES:
            self._counts[f"os.{name}"] += 1
        return getattr(os, name)


@pytest.fixture
def counts(monkeypatch):
    """Returns what an action asks of the remote: calls of the store's methods, and of the file system by the store."""
    total = Counter()

    def counted(name, method):
        def call(self, *arguments):
            total[name] += 1
            return method(self, *arguments)

        return call

    for name in CALLS:
        monkeypatch.setattr(FolderStore, name, counted(name, getattr(FolderStore, name)))
    for module in (store, tree, lock):
        monkeypatch.setattr(module, "os", CountingOs(total))

    def count(action):
        total.clear()
        action()
        return Counter(total)

    return count


def fill(folder, sample):
    """Adds descriptions to a remote: each is another name of one of a few files."""
    source = ""
    for number in range(MANY):
        if number % LINKS == 0:
            source = str(folder / f"{number:032x}.json")
            shutil.copyfile(sample, source)
        else:
            os.link(source, folder / f"{number:032x}.json")


def test_look_up_publishing_and_trust_ask_for_the_same_whatever_the_remote_holds(nodes, counts, tmp_path, monkeypatch):
    builders = [sample_ops.plain_op(tmp_path / f"op{value}", value=value)() for value in range(4)]
    entry = nodes.built(builders[0])
    absent = [sample_ops.plain_op(tmp_path / f"absent{n}", f"absent{n}")() for n in range(2)]

    def trusted():
        nodes.trust(nodes.public, keys.create(f"other{len(keys.names())}"))
        assert len(trust_file.read().keys) == 2

    def measured(turn, builder):
        nodes.enter("builder")
        monkeypatch.delenv("OPFORGE_REMOTES")
        built = builder.build()
        monkeypatch.setenv("OPFORGE_REMOTES", nodes.url)
        results = {"publish": counts(lambda: nodes.push(built)), "again": counts(lambda: nodes.push(built))}
        results["hit"] = counts(lambda: nodes.fetch(builder, f"node{turn}")[0].key)
        results["miss"] = counts(lambda: nodes.fetch(absent[turn], f"node{turn}"))
        results["trust"] = counts(trusted)
        return results

    nodes.push(entry)
    few = measured(0, builders[1])
    fill(nodes.folder / "remote" / "v1" / "topics" / "op", nodes.offers_file(entry))
    many = measured(1, builders[2])
    assert len(os.listdir(nodes.folder / "remote" / "v1" / "topics" / "op")) > MANY
    for step in few:
        calls = {name for name in {*few[step], *many[step]} if not name.startswith("os.")}
        assert {name: many[step][name] for name in calls} == {name: few[step][name] for name in calls}, step
        # A new folder of blobs, for the first digits of their digest, is written with its parent: two calls more.
        assert abs(many[step].total() - few[step].total()) <= 3, step
    assert few["hit"]["get"] + few["hit"]["download"] == 3 and few["hit"]["list"] == 0
    assert few["miss"]["get"] == 1 and not few["trust"]
    assert few["publish"]["list"] == few["publish"]["delete"] == 0 and few["publish"]["os.link"] > 0
