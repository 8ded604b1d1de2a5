"""Publishing: nothing is lost between two publishers, and what must not be published is refused."""

from __future__ import annotations

import os
import threading
import time

import pytest
from support import sample_ops
from support.remote import op_offers

from opforge.cache.records.entry import with_record_key
from opforge.errors import PublishError
from opforge.remote import gc, mirror, offers, op_statements, remotes, statements, topics
from opforge.remote.op_statements import OP
from opforge.remote.signatures import signing
from opforge.remote.stores import open_store


def test_a_second_push_changes_nothing(nodes, entry):
    before = nodes.offers_file(entry).read_bytes()
    assert not nodes.push(entry).is_new
    assert nodes.offers_file(entry).read_bytes() == before


def test_the_signed_bytes_are_the_offers(nodes, entry):
    (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
    assert signing.is_signed(item.data, item.signatures[0], nodes.public)
    tree = OP.parse(item.data).tree
    assert item.data == op_offers.statement(entry.record, entry.record["description"], tree).data()


def test_two_publishers_at_once_lose_nothing(nodes, plain_entry):
    items = [statements.Signed(b'{"number":%d}' % number) for number in range(12)]
    name = OP.topic_file("d" * 32)
    threads = [
        threading.Thread(
            target=topics.edit_items, args=(nodes.store, name, lambda there, item=item: [*there, item], "it", nodes.url)
        )
        for item in items
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = topics.read_frame((nodes.folder / "remote" / OP.topic_file("d" * 32)).read_bytes())
    assert sorted(item.data for item in stored) == sorted(item.data for item in items)


def test_two_libraries_of_one_result_are_two_offers(nodes, builder, entry):
    (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
    offer = OP.parse(item.data)
    other = with_record_key({**offer.facts["record"], "sha256": "0" * 64})
    tree = offer.tree._replace(digest=op_statements.tree_digest(other))
    data = op_offers.statement(other, entry.record["description"], tree).data()
    both = offers.merged([item], statements.Signed(data, item.signatures), OP.parse, OP.merge)
    assert [OP.parse(each.data).label for each in both] == [entry.key, OP.parse(data).label]
    nodes.offers_file(entry).write_bytes(topics.frame(both[::-1]))
    assert nodes.fetch(builder)[0].key == entry.key  # the blob of the other is not what its offer says


def test_what_was_built_with_the_users_flags_is_refused(nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-O1")
    monkeypatch.delenv("OPFORGE_REMOTES")
    nodes.enter("flags")
    entry = sample_ops.plain_op(tmp_path / "flags", "flagged")().build()
    with pytest.raises(PublishError, match=r"it was built with CXXFLAGS='-O1'\. Build it without them, or add flags=1"):
        nodes.push(entry)
    assert nodes.push(entry, remotes.parse(nodes.url + "?flags=1")).is_new


def test_a_library_that_is_not_its_records_is_not_published(nodes, built_entry):
    with open(built_entry.library, "rb") as file:
        content = file.read()
    os.chmod(built_entry.library, 0o700)
    with open(built_entry.library, "wb") as file:
        file.write(content + b"x")
    with pytest.raises(PublishError) as error:
        nodes.push(built_entry)
    assert f"the files in {built_entry.folder} are damaged, or were changed: their digest is " in str(error.value)
    end = ". Nothing was published: opforge verify sets it aside, and it is made again when it is needed."
    assert str(error.value).endswith(end)


def test_a_description_has_a_bounded_number_of_offers(nodes, entry):
    (item,) = topics.read_frame(nodes.offers_file(entry).read_bytes())
    items = [item._replace(data=b'{"n":%d}' % number) for number in range(topics.MAX_ITEMS)]
    nodes.offers_file(entry).write_bytes(topics.frame(items))
    with pytest.raises(PublishError, match="has 256 statements already"):
        nodes.push(entry)


def test_a_damaged_file_of_offers_is_not_overwritten(nodes, entry):
    nodes.offers_file(entry).write_bytes(b"garbage")
    with pytest.raises(PublishError, match="it is not a file of statements"):
        nodes.push(entry)
    assert nodes.offers_file(entry).read_bytes() == b"garbage"


def test_gc_removes_a_blob_that_nothing_names_once_it_is_old(nodes, entry):
    blob = nodes.blob_file(entry)
    os.unlink(nodes.offers_file(entry))
    assert not list(gc.unused(nodes.store, time.time()))
    (unused,) = gc.unused(nodes.store, time.time() + 90_000)
    assert unused.name.endswith(blob.name)


def test_gc_removes_nothing_if_an_offer_cannot_be_read(nodes, entry):
    nodes.offers_file(entry).write_bytes(b"garbage")
    with pytest.raises(Exception, match="it is not valid JSON"):
        list(gc.unused(nodes.store, time.time() + 90_000))


def test_gc_removes_descriptions_that_nobody_publishes_any_more(nodes, entry):
    later = time.time() + 90 * 86400
    names = [unused.name for unused in gc.unused(nodes.store, later, 30 * 86400.0)]
    assert names[0] == OP.topic_file(entry.record["description"])
    assert len(names) == 2


def test_a_mirror_has_the_same_offers_and_signatures(nodes, builder, entry, monkeypatch):
    (nodes.folder / "mirror").mkdir()
    url = f"file://{nodes.folder}/mirror"
    (copied,) = mirror.copy(nodes.store, open_store(url))
    assert (copied.kind, copied.statements, copied.problems) == ("op", 1, ())
    assert not any(again.statements for again in mirror.copy(nodes.store, open_store(url)))
    monkeypatch.setenv("OPFORGE_REMOTES", url)
    assert nodes.fetch(builder)[0].origin == url


def test_a_mirror_does_not_copy_a_damaged_blob(nodes, entry):
    with nodes.blob_file(entry).open("r+b") as file:
        file.write(b"xxxx")
    (nodes.folder / "mirror").mkdir()
    (copied,) = mirror.copy(nodes.store, open_store(f"file://{nodes.folder}/mirror"))
    assert (copied.statements, copied.problems) == (0, ("the blob's digest differs from that in its statement",))
