"""A kind that is new is listed, verified, mirrored and collected as the others are; an unknown one is kept."""

from __future__ import annotations

import time

import pytest
from support import note_kind

from opforge.errors import StoreError
from opforge.remote import contents, gc, mirror, remotes, statements, topics
from opforge.remote.kind_table import KINDS
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store

LATER = 90_000.0


@pytest.fixture
def store(nodes, monkeypatch):
    """The store of a remote with two notes."""
    note_kind.register(monkeypatch)
    nodes.trust(nodes.public, scopes=("op:*", "note:*"))
    for number, text in ((1, b"one"), (2, b"two")):
        note_kind.publish(nodes.store, "greetings", number, text, keys.signer("ci"))
    return nodes.store


@pytest.fixture
def target(tmp_path):
    (tmp_path / "mirror").mkdir()
    return open_store(f"file://{tmp_path}/mirror")


def named(items):
    return [(item.kind, item.name, item.label, item.withdrawn, item.problem) for item in items]


def test_a_note_is_listed_and_withdrawn(store):
    note_kind.withdraw(store, "greetings", 1, "it is rude", keys.signer("ci"))
    assert named(contents.items(store)) == [
        ("note", "greetings", "1", "not chosen any more, says ci: it is rude", ""),
        ("note", "greetings", "2", "", ""),
    ]
    assert all(item.signers == ("ci",) and item.size > 0 and item.target == "en" for item in contents.items(store))


def test_a_note_is_verified(store, nodes):
    remote = remotes.parse(nodes.url)
    assert not [item.problem for item in contents.verify(store, remote) if item.problem]
    good = [blob.name for blob in store.list("v1/blobs/")]
    note_kind.publish(store, "greetings", 3, b"\xff", keys.signer("ci"))
    (bad,) = [item for item in contents.verify(store, remote) if item.problem]
    assert (bad.label, bad.problem) == ("3", "it is not ASCII")
    store.delete(good[0])
    assert len([item for item in contents.verify(store, remote) if item.problem]) == 2


def test_a_label_that_its_statement_contradicts_is_reported(store, nodes):
    """Nobody signs which label a topic gives a statement: an older one could pass for a newer."""
    listed = topics.read_named(store, "note", "greetings").statements

    def lie(there):
        return there._replace(statements={**listed, "9": listed["1"]})

    topics.edit_listing(store, "note", "greetings", lie)
    (item,) = [item for item in contents.verify(store, remotes.parse(nodes.url)) if item.problem]
    assert (item.label, item.problem) == ("9", "its topic names it 9, and it is 1")


def test_a_mirror_of_one_kind_reads_no_other(store, target):
    store.put_if_absent("v1/topics/op/bad.json", b"garbage")
    assert [(copied.kind, copied.problems) for copied in mirror.copy(store, target, kind="note")] == [("note", ())]
    assert any(copied.problems for copied in mirror.copy(store, target))


def test_a_key_for_other_names_cannot_sign_a_note(store, nodes):
    nodes.trust(nodes.public, scopes=("op:plain",))
    problems = [item.problem for item in contents.verify(store, remotes.parse(nodes.url))]
    assert len(problems) == 2 and all("may sign note:greetings" in problem for problem in problems)


def test_notes_are_mirrored_with_their_withdrawals(store, target):
    note_kind.withdraw(store, "greetings", 1, "it is rude", keys.signer("ci"))
    (copied,) = mirror.copy(store, target)
    assert (copied.kind, copied.topic, copied.statements, copied.problems) == ("note", "greetings", 2, ())
    assert topics.read_named(target, "note", "greetings") == topics.read_named(store, "note", "greetings")
    assert [again.statements for again in mirror.copy(store, target)] == [0]
    assert named(contents.items(target)) == named(contents.items(store))


def test_what_no_topic_names_is_collected(store):
    assert not list(gc.unused(store, time.time() + LATER))
    digest = topics.read_named(store, "note", "greetings").statements["1"].digest
    topics.edit_listing(
        store, "note", "greetings", lambda there: there._replace(statements={"2": there.statements["2"]})
    )
    blob, statement = gc.unused(store, time.time() + LATER)
    assert (statement.name, statement.reason) == (statements.name_of(digest), "no topic names it")
    assert blob.name.startswith("v1/blobs/") and blob.reason == "no statement names it"
    assert len(list(gc.collect(store, time.time() + LATER))) == 2
    assert [item.label for item in contents.items(store) if not item.problem] == ["2"]
    assert not list(gc.unused(store, time.time()))


class TestAnUnknownKind:
    @pytest.fixture(autouse=True)
    def unknown(self, store, nodes, monkeypatch):
        nodes.trust(nodes.public)
        monkeypatch.delitem(KINDS, "note")

    def test_it_is_listed_as_unknown(self, store):
        assert {item.problem for item in contents.items(store)} == {"the kind 'note' is unknown to this opforge"}

    def test_it_is_copied(self, store, target):
        (copied,) = mirror.copy(store, target)
        assert (copied.statements, copied.problems) == (2, ())

    def test_it_is_kept_with_its_trees(self, store):
        assert not list(gc.unused(store, time.time() + LATER))

    def test_a_statement_that_cannot_be_read_stops_the_collection(self, store):
        digest = topics.read_named(store, "note", "greetings").statements["1"].digest
        name = statements.name_of(digest)
        store.delete(name)
        store.put_if_absent(name, b"garbage\n[]\n")
        with pytest.raises(StoreError, match=f"{name}: its bytes are not those"):
            list(gc.unused(store, time.time() + LATER))


def test_a_listing_begins_before_the_store_is_read_to_its_end(store, monkeypatch):
    """A store may hold any number of topics."""
    listed, real = [], type(store).list

    def counted(self, *arguments):
        for file in real(self, *arguments):
            listed.append(file.name)
            yield file

    monkeypatch.setattr(type(store), "list", counted)
    assert next(topics.in_store(store)).topic == "greetings" and len(listed) == 1
    note_kind.publish(store, "other", 1, b"more", keys.signer("ci"))
    assert [topic.topic for topic in topics.in_store(store)] == ["greetings", "other"]
