"""What a look-up fetches: an entry that fits, once, after all that is here; and what it refuses, with the reason."""

from __future__ import annotations

import logging
import os
import sys

import pytest
from support import sample_ops, text_files
from support.remote import op_offers
from support.remote.artifacts import run
from support.remote.nodes import reasons

from opforge.builders import load_op
from opforge.builders.lookup import finder, remotes
from opforge.cache.current_store import current_store
from opforge.cache.layout import Layout
from opforge.cache.maintenance import gc, listing, verify
from opforge.cache.records import fetched_offer, pins
from opforge.cache.records.entry import with_record_key
from opforge.foundation.files import temp_path
from opforge.remote import fetched_entries, take, topics
from opforge.remote.entry_source import RemoteEntries
from opforge.remote.op_statements import OP


def test_an_entry_is_fetched_and_found_again(nodes, builder, entry, monkeypatch):
    first, _rejected = nodes.fetch(builder)
    assert (first.key, first.origin) == (entry.key, nodes.url)
    assert first.folder.startswith(str(nodes.folder / "node"))
    monkeypatch.delenv("OPFORGE_REMOTES")
    again, _rejected = nodes.fetch(builder)
    assert (again.folder, again.origin) == (first.folder, nodes.url)
    assert again.record == entry.record


def test_what_another_process_is_writing_is_no_news_and_is_left_alone(nodes, builder, entry, caplog):
    """A wait for one fetch ended with the file before its rename, so several processes fetched."""
    found, _rejected = nodes.fetch(builder)
    folder = current_store().layout.fetched(found.record["description"])
    unfinished = temp_path(os.path.join(folder, entry.key))
    text_files.write(folder, os.path.basename(unfinished), "{")
    assert fetched_entries.names(current_store().layout, found.record["description"]) == [entry.key]
    os.unlink(os.path.join(folder, entry.key))
    assert nodes.fetch(builder)[0].key == entry.key
    assert os.path.exists(unfinished) and "is damaged" not in caplog.text


def test_the_command_learns_of_a_withdrawal_although_nothing_is_missing(nodes, builder, entry, monkeypatch):
    module = type(builder).__module__
    monkeypatch.setattr(sys.modules[module], "Builder", type(builder), raising=False)
    assert nodes.fetch(builder)[0].key == entry.key
    assert run("fetch", f"{module}:Builder").startswith("present ")
    run("withdraw", nodes.url, entry.key, "--stop-loading", "--key", "ci")
    assert "the key ci has withdrawn it" in run("fetch", f"{module}:Builder", code=1)
    assert nodes.fetch(builder)[0] is None


def test_it_is_found_without_a_compiler(nodes, builder, entry, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert nodes.fetch(builder)[0].key == entry.key


def test_require_forbids_building_and_allows_fetching(nodes, builder, entry, monkeypatch):
    monkeypatch.setenv("OPFORGE_PREBUILT", "require")
    assert nodes.fetch(builder)[0].key == entry.key


def test_ignore_asks_no_remote(nodes, builder, entry, monkeypatch):
    monkeypatch.setenv("OPFORGE_PREBUILT", "ignore")
    assert nodes.fetch(builder) == (None, []) or nodes.url not in reasons(nodes.fetch(builder)[1])


def test_a_hit_asks_no_remote(nodes, builder, built_entry, monkeypatch):
    monkeypatch.setenv("OPFORGE_REMOTES", "file:///no/such/folder")
    nodes.enter("builder")
    assert load_op.stored_entry(finder.Finder(builder.spec(), current_store(), asks=True)).origin == "cache"


def test_an_entry_is_published_and_fetched_with_the_same_files(nodes, builder, entry):
    there = nodes.fetch(builder)[0]
    assert sorted(os.listdir(there.folder)) == sorted([entry.record["file"], "record.json"])
    with open(there.library, "rb") as ours, open(entry.library, "rb") as theirs:
        assert ours.read() == theirs.read()


def test_another_source_gets_nothing(nodes, builder, entry, tmp_path):
    with open(tmp_path / "op" / "plain.cpp", "a") as file:
        file.write("// changed\n")
    match, rejected = nodes.fetch(builder)
    assert match is None
    assert f"{nodes.url}: {take.NOTHING}" in reasons(rejected)


def test_a_changed_header_is_seen_before_the_blob_is_fetched(nodes, builder, entry, tmp_path):
    os.unlink(nodes.blob_file(entry))
    sample_ops.set_value(tmp_path / "op", 2)
    match, rejected = nodes.fetch(builder)
    assert match is None
    assert "value.h has changed" in reasons(rejected) or "value.h" in reasons(rejected)
    assert "cannot be used" not in reasons(rejected)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"target": "cpu:aarch64"}, "aarch64"),
        ({"floors": {"GLIBC": "99.0"}}, "it needs glibc 99.0"),
        ({"interface": 99}, "it was made by a newer opforge (interface 99"),
        ({"op": "another"}, "it is an op 'another'"),
    ],
)
def test_an_offer_that_does_not_fit_is_refused_before_its_blob_is_fetched(nodes, builder, entry, changes, problem):
    tree = OP.parse(topics.read_frame(nodes.offers_file(entry).read_bytes())[0].data).tree
    os.unlink(nodes.blob_file(entry))
    data = op_offers.statement(with_record_key({**entry.record, **changes}), entry.record["description"], tree).data()
    nodes.put_offer(entry, data)
    match, rejected = nodes.fetch(builder)
    assert match is None
    assert problem in reasons(rejected)


def test_entries_that_fit_another_machine_only_are_no_warning(nodes, builder, entry, caplog):
    tree = OP.parse(topics.read_frame(nodes.offers_file(entry).read_bytes())[0].data).tree
    record = with_record_key({**entry.record, "floors": {"GLIBC": "99.0"}})
    nodes.put_offer(entry, op_offers.statement(record, entry.record["description"], tree).data())
    with caplog.at_level(logging.WARNING, "opforge"):
        nodes.fetch(builder)
    assert not caplog.records


def test_a_signed_offer_of_another_op_cannot_be_handed_out(nodes, builder, entry, tmp_path):
    other = nodes.built(sample_ops.plain_op(tmp_path / "other", "other")(), "other")
    nodes.offers_file(entry).write_bytes(nodes.offers_file(other).read_bytes())
    match, rejected = nodes.fetch(builder)
    assert match is None
    assert "it was made for another topic" in reasons(rejected)


class TestTheStoreKnowsIt:
    def test_it_is_listed_verified_and_collected(self, nodes, builder, entry):
        there = nodes.fetch(builder)[0]
        layout = Layout(str(nodes.folder / "node"))
        assert [stored.key for stored in listing.entries(layout)] == [there.key]
        assert not verify.verify(layout, {os.geteuid()})[0].problem
        now = os.stat(there.folder).st_mtime + 7200
        assert not [item for item in gc.over_limit(layout, now) if item.kind == "entry"]
        removed = gc.over_limit(layout, now, max_age=3600)
        assert {item.kind for item in removed} >= {"entry", "pointer to a fetched entry"}
        gc.remove(layout, removed)
        assert not os.path.exists(there.folder)

    def test_a_pinned_one_is_not_evicted(self, nodes, builder, entry):
        there = nodes.fetch(builder)[0]
        layout = Layout(str(nodes.folder / "node"))
        pins.pin(layout, there.key)
        now = os.stat(there.folder).st_mtime + 7200
        assert not [item for item in gc.over_limit(layout, now, max_age=3600) if item.kind == "entry"]

    def test_a_damaged_library_is_fetched_again(self, nodes, builder, entry):
        there = nodes.fetch(builder)[0]
        os.chmod(there.library, 0o600)
        with open(there.library, "ab") as file:
            file.write(b"x")
        again = nodes.fetch(builder)[0]
        assert os.path.getsize(again.library) == entry.record["size"]

    def test_a_build_takes_the_place_of_what_was_fetched(self, nodes, builder, entry, warnings_of_the_cache):
        nodes.fetch(builder)
        forced = builder.build(force=True)
        assert forced.key == entry.key
        assert forced.build()["inputs"]
        assert not warnings_of_the_cache()

    def test_what_was_built_here_stays_if_it_is_fetched_too(self, nodes, builder, built_entry):
        nodes.enter("builder")
        request = remotes.request_for(builder.spec(), current_store())
        assert RemoteEntries(is_fresh=True).fetch(request)[0]
        assert Layout(str(nodes.folder / "builder")).entry(built_entry.key) == built_entry.folder
        assert built_entry.build()["inputs"]

    def test_a_damaged_note_of_an_offer_is_no_hit(self, nodes, builder, entry):
        nodes.fetch(builder)
        folder = Layout(str(nodes.folder / "node")).fetched(entry.record["description"])
        path = os.path.join(folder, entry.key)
        for content in (b"", b"[]", b"{" * 5000, b'{"format": 1}'):
            with open(path, "wb") as file:
                file.write(content)
            os.utime(path, (1, 1))
            assert nodes.fetch(builder)[0].key == entry.key
        assert fetched_offer.read(path).signer == "ci"
