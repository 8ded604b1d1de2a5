"""A damaged record costs nothing but itself, and each command names it; a store that was rolled back is named too."""

from __future__ import annotations

import json
import os

import pytest
from support.jits import pages
from support.remote.artifacts import run
from support.remote.withdrawing import withdraw

from opforge.builders.lookup import tuning_results as records
from opforge.cache.current_store import current_store, writable_store
from opforge.cache.keys import bytes_digest
from opforge.jits.kind import JIT
from opforge.remote import remotes
from opforge.remote.op_statements import came_from
from opforge.remote.stores import open_store

RESULT = {"format": 1, "op": "relu", "kernel": "a" * 32, "target": "cpu:x86-64", "cores": 2, "rows": []}


@pytest.fixture
def results(nodes):
    """A store with a result, and another one that is damaged; it returns the paths of both."""
    nodes.trust(nodes.public, scopes=("op:*", "tuned:*"))
    nodes.enter("a")
    root = writable_store().layout.root
    good, bad = records.write(root, RESULT), records.write(root, {**RESULT, "kernel": "b" * 32})
    with open(bad, "w") as file:
        file.write('{"op": "relu"')
    return good, bad


class TestATuningResultThatIsDamaged:
    def test_it_is_removed_with_the_others_and_named(self, results):
        output = run("rm", "tuned:*")
        assert "removed the tuning result relu, " in output and results[0] in output
        assert "removed the tuning result that cannot be read, " in output and results[1] in output
        assert not any(map(os.path.exists, results))

    def test_the_others_are_published_and_it_is_named(self, results, nodes):
        output = run("publish", nodes.url, "tuned:*", code=1)
        assert "published tuned:relu@aaaaaaaa-cpu for cpu:x86-64, 2 cores" in output
        assert (
            f"error: {results[1]}: {results[1]} was not published to {nodes.url}: it is damaged: it is not valid JSON"
            in output
        )
        document = json.loads(run("publish", nodes.url, "tuned:*", "--json", code=1))
        assert len(document["tuned"]) == len(document["failed"]) == 1

    def test_a_check_of_the_cache_sets_it_aside(self, results):
        output = run("verify", code=1)
        assert "damaged tuned: it is not valid JSON (" in output and f"({results[1]}, set aside)" in output
        assert "2 tuning results checked, 1 damaged" in output
        assert [os.path.exists(path) for path in results] == [True, False]
        assert "1 tuning result checked, 0 damaged" in run("verify")

    def test_a_folder_in_its_place_is_removed_too(self, results):
        os.unlink(results[1])
        os.makedirs(os.path.join(results[1], "x"))
        run("rm", "tuned:*")
        assert not any(map(os.path.exists, results))


def test_a_check_of_the_cache_compares_every_file_of_a_page(nodes, monkeypatch):
    nodes.enter("a")
    monkeypatch.delenv("OPFORGE_REMOTES")
    pages.keep({"key": {"code": b"code"}})
    (one,) = JIT.stored(current_store().layout)
    assert "1 page of a JIT checked, 0 damaged" in run("verify")
    name = f"objects/{bytes_digest(b'code')}"
    with open(os.path.join(one.path, "tree", name), "wb") as file:
        file.write(b"other")
    damaged = json.loads(run("verify", "--json", code=1))["others"]["damaged"]
    assert [(one["kind"], one["name"], one["problem"], one["set_aside"]) for one in damaged] == [
        ("jit", "jit:toy/copy", f"it is damaged, or was changed: {name}", True)
    ]
    assert not os.path.exists(one.path)


def test_a_check_of_a_store_refuses_a_list_that_was_rolled_back(nodes, entry):
    """As a fetch does."""
    assert "1 statement checked, 0 refused" in run("verify", nodes.url)
    path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
    older = path.read_bytes()
    withdraw(nodes.store, "0" * 32 + "-" + "0" * 16)
    assert "1 statement checked, 0 refused" in run("verify", nodes.url)
    path.write_bytes(older)
    output = run("verify", nodes.url, code=1)
    assert f"refused op plain {entry.key}: " in output and "was seen before" in output
    path.unlink()
    assert "it is gone, and the one of " in run("verify", nodes.url, code=1)


def test_what_is_withdrawn_is_listed_and_not_damaged(nodes, entry):
    withdraw(nodes.store, entry.key)
    assert "1 statement checked, 0 refused" in run("verify", nodes.url)


class TestNothingIsSignedThatWasNotMadeHere:
    @pytest.fixture
    def fetched(self, nodes, builder, entry, monkeypatch, tmp_path):
        """An entry that was fetched from a remote without signatures, and another store."""
        unsigned = tmp_path / "unsigned"
        unsigned.mkdir()
        remote = remotes.parse(f"file://{unsigned}?unsigned=1")
        nodes.push(entry, remote)
        monkeypatch.setenv("OPFORGE_REMOTES", f"file://{unsigned}?unsigned=1")
        match, _rejected = nodes.fetch(builder)
        assert match.origin.endswith("(unsigned)")
        (tmp_path / "own").mkdir()
        return open_store(f"file://{tmp_path}/own")

    def test_all_leaves_it_out(self, fetched, entry):
        output = run("publish", fetched.url, "--all")
        assert "note: 1 that were not made here are left out (op:plain): their publishers sign" in output
        assert "0 entries published" in output and not list(fetched.list("v1/topics/"))

    def test_by_its_name_it_is_an_error(self, fetched, entry):
        output = run("publish", fetched.url, "plain", code=1)
        assert "/unsigned, and was not made here. Its publisher signs it: opforge mirror copies it with its" in output
        assert not list(fetched.list("v1/topics/"))

    def test_once_it_is_built_here_it_may_be_signed(self, fetched, builder, nodes, monkeypatch):
        from opforge.builders import load_op

        monkeypatch.delenv("OPFORGE_REMOTES")
        layout = nodes.enter("node").layout
        assert came_from(layout.entry(os.listdir(layout.path("entries"))[0]))
        assert load_op.build(builder.spec()).origin in ("built", "cache")
        folders = [layout.entry(name) for name in os.listdir(layout.path("entries"))]
        assert "" in map(came_from, folders)
