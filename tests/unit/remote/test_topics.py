"""The files of topics: what they hold is given back byte by byte, bounded, and changed by compare-and-swap."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opforge.cache.keys import canonical
from opforge.errors import PublishError, StoreError
from opforge.remote import statements, topics
from opforge.remote.signatures import signing
from opforge.remote.statements import Signed
from opforge.remote.stores import open_store
from opforge.remote.topics import ListedStatement, Listing

SIGNATURE = signing.Named("ci", b"s" * 64)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60).map(lambda text: text.encode())


def item(**fields):
    return canonical({"op": "relu", **fields})


@given(st.lists(st.tuples(texts, st.lists(st.binary(min_size=64, max_size=64), max_size=8)), max_size=12))
@settings(max_examples=100, deadline=None)
def test_a_frame_gives_back_the_bytes_that_were_signed(items):
    signed = [Signed(data, tuple(signing.Named("k", raw) for raw in raws)) for data, raws in items]
    assert topics.read_frame(topics.frame(signed)) == signed


def test_a_frame_is_json_too():
    data = topics.frame([Signed(item(), (SIGNATURE,)), Signed(item())])
    items = json.loads(data)["items"]
    assert [item["signatures"] for item in items] == [[str(SIGNATURE)], []]
    assert items[0]["item"]["op"] == "relu"


def test_bytes_that_look_like_signatures_stay_in_the_item():
    data = b'{"op":"x","signatures":["ci:' + b"A" * 86 + b'=="]}'
    (read,) = topics.read_frame(topics.frame([Signed(data, (SIGNATURE,))]))
    assert read == Signed(data, (SIGNATURE,))


FRAME = topics.frame([Signed(item(), (SIGNATURE,)), Signed(item(n=2), (SIGNATURE, SIGNATURE))])


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_frame_is_refused_or_gives_items(data):
    damaged = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        items = topics.read_frame(bytes(damaged))
    except ValueError:
        return
    assert all(len(item.signatures) <= statements.MAX_SIGNATURES for item in items)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it is not a file of statements"),
        (b"<html>\n404\n</html>\n", "it is not a file of statements"),
        (FRAME.replace(b'"format":1', b'"format":2', 1), "a format that this opforge does not read"),
        (FRAME[:-10], "it is cut short"),
        (FRAME[: FRAME.index(b"\n") + 1], "it is cut short"),
        (FRAME.replace(b'{"item":', b'{"thing":', 1), "a line in it is not a statement"),
        (FRAME.replace(b'"ci:', b'"c i:'), "a line in it is not a statement"),
        (b'{"format":1,"items":[\n' + b"\n" * 300 + b"]}\n", "more than 256 statements"),
        (b"x" * (5 << 20), "at most 4194304 are read"),
    ],
)
def test_what_is_no_frame_is_refused(data, problem):
    with pytest.raises(ValueError, match=problem):
        topics.read_frame(data)


def test_ten_thousand_statements_are_not_parsed():
    line = b'{"item":{},"signatures":[]},\n'
    with pytest.raises(ValueError, match="more than 256 statements"):
        topics.read_frame(b'{"format":1,"items":[\n' + line * 10_000 + b"]}\n")


def test_too_many_signatures_are_refused():
    line = b'{"item":{},"signatures":[' + b",".join([f'"{SIGNATURE}"'.encode()] * 9) + b"]}\n"
    with pytest.raises(ValueError, match="more than 8 signatures"):
        topics.read_frame(b'{"format":1,"items":[\n' + line + b"]}\n")


LISTING = Listing("package", "acme/relu", 7, {"2.3": ListedStatement("a" * 64), "2": ListedStatement("b" * 64)})


def test_a_listing_reads_back():
    data = LISTING.data()
    assert topics.read_listing(data, "package", "acme/relu") == LISTING
    assert topics.name_of("package", "acme/relu") == "v1/topics/package/acme/relu.json"
    assert topics.parse_name("v1/topics/package/acme/relu.json") == ("package", "acme/relu")
    assert not topics.is_frame(data) and topics.is_frame(FRAME)


@pytest.mark.parametrize("name", ["op/x.json.lock", "x.json", "Op/x.json", "op/.x.json", "op/a//b.json"])
def test_what_is_no_topic_has_no_name(name):
    assert topics.parse_name(f"v1/topics/{name}") is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2}, "'format' is 2, and this opforge reads 1: update opforge"),
        ({"format": True}, "'format' is True, and this opforge reads 1"),
        ({"topic": "acme/other"}, "it is the topic package 'acme/other', and not package acme/relu"),
        ({"kind": "op"}, "it is the topic op 'acme/relu', and not package acme/relu"),
        ({"kind": "Op"}, "'kind' is 'Op': expected lower-case letters, digits and '-'"),
        ({"more": 1}, "'more' is not a field that is read"),
        ({"sequence": -1}, "'sequence' is -1: expected a whole number"),
        ({"sequence": True}, "'sequence' is True"),
        ({"statements": []}, "'statements' is a list of 0 items: expected an object"),
        ({"statements": {"1": "a" * 64}}, "'statements.1' is 'aaa"),
        ({"statements": {"1": {"digest": "x"}}}, "'statements.1.digest' is 'x': expected 64 hex digits"),
        ({"statements": {"1": {"digest": "a" * 64, "more": 1}}}, "'statements.1.more' is not a field that is read"),
        ({"statements": {"1" * 101: {"digest": "a" * 64}}}, "expected at most 100 printable characters"),
        ({"statements": {"1\x1b[2J": {"digest": "a" * 64}}}, r"'statements (a name in it)' is '1\x1b[2J'"),
        ({"statements": {"\u0661": {"digest": "a" * 64}}}, r"'statements (a name in it)' is '\u0661'"),
    ],
)
def test_a_damaged_listing_says_why(changes, problem):
    value = {**json.loads(LISTING.data()), **changes}
    with pytest.raises(ValueError) as error:
        topics.read_listing(canonical(value), "package", "acme/relu")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[" * 100_000, b"3", b'{"format":1,"format":1}', b"\xff", b"x" * (17 << 20)]
)
def test_what_is_no_listing_is_refused(data):
    with pytest.raises(ValueError):
        topics.read_listing(data, "package", "acme/relu")


@pytest.fixture
def store(tmp_path):
    (tmp_path / "remote").mkdir()
    return open_store(f"file://{tmp_path}/remote")


def test_many_editors_at_once_lose_nothing(store):
    def add(number):
        topics.edit(store, "v1/topics/note/x.json", 10_000, lambda data: (data or b"") + b"%d\n" % number)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, store.get("v1/topics/note/x.json", 10_000).data.split())) == list(range(12))


def test_an_edit_that_changes_nothing_writes_nothing(store):
    assert topics.edit(store, "v1/topics/note/x.json", 10, lambda _data: None) is None
    assert store.get("v1/topics/note/x.json", 10) is None


def test_an_editor_who_is_always_too_late_is_told(store, monkeypatch):
    monkeypatch.setattr(topics, "ATTEMPTS", 3)
    monkeypatch.setattr(topics, "FIRST_PAUSE", 0.001)
    name, calls = "v1/topics/note/x.json", []

    def change(data):
        calls.append(data)
        stored = store.get(name, 100)
        another = (data or b"") + b"another"
        assert store.put_if_unchanged(name, another, stored.version) if stored else store.put_if_absent(name, another)
        return b"mine"

    with pytest.raises(PublishError, match=r"x was not published to .*: others kept changing v1/topics/note/x\.json"):
        topics.edit(store, name, 100, change, "x")
    assert len(calls) == 3


def test_pauses_between_attempts_grow_and_are_bounded(monkeypatch):
    slept = []
    monkeypatch.setattr(topics.time, "sleep", slept.append)
    assert [*topics.attempts()] == [*range(topics.ATTEMPTS)]
    assert len(slept) == topics.ATTEMPTS - 1
    assert max(slept) <= topics.MAX_PAUSE and slept[0] <= topics.FIRST_PAUSE
    assert len({*slept}) == len(slept)


def test_a_listing_is_edited_and_its_sequence_rises(store):
    def add(label):
        return lambda listing: listing._replace(statements={**listing.statements, label: ListedStatement("a" * 64)})

    assert topics.edit_listing(store, "note", "x", add("1")).sequence == 1
    assert topics.edit_listing(store, "note", "x", add("2")) == topics.read_named(store, "note", "x")
    assert topics.read_named(store, "note", "x") == Listing(
        "note", "x", 2, {"1": ListedStatement("a" * 64), "2": ListedStatement("a" * 64)}
    )
    assert topics.edit_listing(store, "note", "x", lambda _listing: None) is None
    store.put_if_absent("v1/topics/note/y.json", b"garbage")
    with pytest.raises(StoreError, match=r"reading v1/topics/note/y.json failed: it is not valid JSON"):
        topics.read_named(store, "note", "y")
    with pytest.raises(ValueError, match="it is not valid JSON"):
        topics.edit_listing(store, "note", "y", add("1"))


def test_the_topics_of_a_store_in_order(store):
    topics.edit_listing(store, "note", "x", lambda listing: listing)
    store.put_if_absent("v1/topics/op/" + "a" * 32 + ".json", FRAME)
    store.put_if_absent("v1/topics/op/bad.json", b"garbage")
    found = [(topic.kind, topic.topic, len(topic.items), bool(topic.problem)) for topic in topics.in_store(store)]
    assert found == [("note", "x", 0, False), ("op", "a" * 32, 2, False), ("op", "bad", 0, True)]
    assert [topic.topic for topic in topics.in_store(store, "note")] == ["x"]
