"""`remote gc` and publishers of what it is about to remove: whatever the order of their requests, no offer is left
whose blob is gone.
"""

from __future__ import annotations

import json
import os
import time

import pytest
from support.remote import turns

from opforge.errors import StoreError
from opforge.remote import gc, mirror, publish, remotes, removals
from opforge.remote.op_statements import OP
from opforge.remote.signatures import keys
from opforge.remote.stores import open_store

DAYS = 86400.0


@pytest.fixture
def unnamed(nodes, entry, monkeypatch):
    """Makes the blob of the published entry an old one that nothing names, and returns its file."""
    monkeypatch.setattr(removals, "PAUSE_SECONDS", 0.0)
    blob = nodes.blob_file(entry)

    def make():
        if nodes.offers_file(entry).exists():
            os.unlink(nodes.offers_file(entry))
        if not blob.exists():
            nodes.push(entry)
            os.unlink(nodes.offers_file(entry))
        then = time.time() - 3 * DAYS
        os.utime(blob, (then, then))
        return blob

    return make


def pushing(nodes, entry):
    """Returns what publishes the entry to a store."""
    remote, signer = remotes.parse(nodes.url), keys.signer("ci")
    return lambda store: publish.push(store, remote, OP, OP.at(entry.folder, entry.record["description"]), signer)


def collect(store):
    list(gc.collect(store, time.time()))


def test_in_any_order_of_their_requests_what_is_published_has_its_blob(nodes, entry, unnamed):
    removed = 0
    for seed in range(60):
        blob = unnamed()
        with open(blob) as kept:  # so that no other file gets its number
            turns.run(lambda: open_store(nodes.url), seed, collect, pushing(nodes, entry))
            assert nodes.offers_file(entry).exists() and blob.exists(), seed
            is_same = os.path.samestat(os.fstat(kept.fileno()), os.stat(blob))
        removed += not is_same
        assert not list(nodes.store.list(removals.PREFIX)) or is_same, seed
        for note in nodes.store.list(removals.PREFIX):
            nodes.store.delete(note.name)
    assert 0 < removed < 60  # both the removal and the publication came first


def test_two_collections_and_two_publishers(nodes, entry, unnamed):
    for seed in range(25):
        blob = unnamed()
        push = pushing(nodes, entry)
        turns.run(lambda: open_store(nodes.url), seed, collect, collect, push, push)
        assert nodes.offers_file(entry).exists() and blob.exists(), seed
        for note in nodes.store.list(removals.PREFIX):
            nodes.store.delete(note.name)


def test_a_mirror_that_copies_to_a_store_that_is_collected(nodes, entry, unnamed, tmp_path):
    (tmp_path / "source").mkdir()
    source = remotes.parse(f"file://{tmp_path}/source")
    nodes.push(entry, source)
    for seed in range(25):
        blob = unnamed()
        turns.run(
            lambda: open_store(nodes.url), seed, collect, lambda store: list(mirror.copy(open_store(source.url), store))
        )
        assert nodes.offers_file(entry).exists() and blob.exists(), seed
        for note in nodes.store.list(removals.PREFIX):
            nodes.store.delete(note.name)


def test_nothing_is_left_of_a_collection(nodes, entry, unnamed):
    blob = unnamed()
    (removed,) = gc.collect(nodes.store, time.time())
    assert removed.name.endswith(blob.name) and not blob.exists()
    assert not list(nodes.store.list(removals.PREFIX))


def test_a_publisher_waits_for_a_removal_and_sends_the_blob_again(nodes, entry, unnamed, monkeypatch):
    blob = unnamed()
    note = removals.note_of(str(blob)[str(blob).index("v1/") :])
    nodes.store.put_if_absent(note, json.dumps({"state": "removing", "token": "1"}).encode())

    def remove(_seconds):
        nodes.store.delete(str(blob)[str(blob).index("v1/") :])
        nodes.store.delete(note)

    monkeypatch.setattr(removals.time, "sleep", remove)
    nodes.push(entry)
    assert blob.exists() and nodes.store.get(note, 4096) is None


def test_a_publisher_does_not_wait_for_ever_for_a_collection_that_was_killed(nodes, entry, unnamed, monkeypatch):
    monkeypatch.setattr(removals, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(removals, "PAUSE_SECONDS", 0.05)
    blob = unnamed()
    note = removals.note_of(str(blob)[str(blob).index("v1/") :])
    nodes.store.put_if_absent(note, json.dumps({"state": "removing", "token": "1"}).encode())
    nodes.push(entry)
    assert blob.exists()
    assert json.loads(nodes.store.get(note, 4096).data)["state"] == "needed"


@pytest.mark.parametrize("text", [b'{"state": "announced", "token": "1"}', b"garbage", b'{"state": "removing"}'])
def test_the_note_of_a_collection_that_was_killed_is_taken_over_after_an_hour(nodes, entry, unnamed, text):
    blob = unnamed()
    note = removals.note_of(str(blob)[str(blob).index("v1/") :])
    nodes.store.put_if_absent(note, text)
    assert not list(gc.collect(nodes.store, time.time())) and blob.exists()
    assert len(list(gc.collect(nodes.store, time.time() + 3700))) == 1
    assert not blob.exists() and not list(nodes.store.list(removals.PREFIX))


def test_a_note_of_a_blob_that_is_needed_is_removed_after_an_hour(nodes, entry):
    nodes.store.put_if_absent(f"{removals.PREFIX}{'a' * 64}.json", b"{}")
    assert not list(gc.collect(nodes.store, time.time() + 3700))
    assert not list(nodes.store.list(removals.PREFIX))


def test_a_process_that_was_stopped_before_a_removal_does_not_remove_later(nodes, entry, unnamed, monkeypatch):
    monkeypatch.setattr(removals, "STEP_SECONDS", -1.0)
    blob = unnamed()
    with pytest.raises(StoreError, match="this process did not run for a while"):
        collect(nodes.store)
    assert blob.exists()


def test_old_offers_that_are_published_again_meanwhile_stay(nodes, entry, monkeypatch):
    later, real = time.time() + 90 * DAYS, gc.unused

    def unused(store, now, unused_for):
        items = list(real(store, now, unused_for))
        os.utime(nodes.offers_file(entry), (now, now))
        return items

    monkeypatch.setattr(gc, "unused", unused)
    list(gc.collect(nodes.store, later, 30 * DAYS))
    assert nodes.offers_file(entry).exists() and nodes.blob_file(entry).exists()
    monkeypatch.undo()


def test_old_offers_and_their_blobs_are_removed(nodes, entry):
    blob = nodes.blob_file(entry)
    removed = [item.name for item in gc.collect(nodes.store, time.time() + 90 * DAYS, 30 * DAYS)]
    assert removed[0] == OP.topic_file(entry.record["description"]) and len(removed) == 2
    assert not blob.exists() and not nodes.offers_file(entry).exists()
