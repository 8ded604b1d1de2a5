"""One clock that is wrong closes no store: lists of withdrawals, their dates, and the way back."""

from __future__ import annotations

import time

import pytest
from support.remote.nodes import reasons
from support.remote.withdrawing import entries_of, withdraw

from opforge.errors import PublishError, StoreError
from opforge.remote import clocks, entry_source, gc, remembered_answers, withdrawal_lists
from opforge.remote.signatures import keys
from opforge.remote.withdrawal_lists import Unverified

DAYS = 86400.0
OTHER = "0" * 32 + "-" + "0" * 16


@pytest.fixture
def clock(monkeypatch):
    """Sets this machine's clock, and not the store's."""
    real = time.time

    def set_to(seconds):
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return set_to


@pytest.mark.parametrize(("seconds", "word"), [(40 * DAYS, "ahead of"), (-2 * DAYS, "behind")])
def test_a_list_with_a_wrong_date_is_not_published(nodes, entry, clock, seconds, word):
    before = nodes.store.get(withdrawal_lists.name_of("ci"), 1 << 20)
    clock(seconds)
    with pytest.raises(PublishError, match=rf"this machine's clock says 20.*, {word} the store's, which says 20.*Z"):
        withdraw(nodes.store, OTHER)
    assert nodes.store.get(withdrawal_lists.name_of("ci"), 1 << 20) == before
    assert not list(nodes.store.list("v1/claims/"))


def test_a_file_that_asked_for_the_time_and_may_not_be_deleted_is_collected_after_a_day(nodes, entry, monkeypatch):
    def refuses(self, name):
        raise StoreError(nodes.url, f"delete {name}", "it is forbidden", "Ask its owner")

    with monkeypatch.context() as patch:
        patch.setattr(type(nodes.store), "delete", refuses)
        assert clocks.of_store(nodes.store)
    (left,) = nodes.store.list("v1/claims/")
    assert not list(gc.collect(nodes.store, time.time()))
    (removed,) = gc.collect(nodes.store, time.time() + 2 * DAYS)
    assert removed.name == left.name and not list(nodes.store.list("v1/claims/"))


def test_an_hour_is_not_wrong(nodes, entry, clock):
    clock(3500)
    assert entries_of(withdraw(nodes.store, OTHER)) == [OTHER]


@pytest.fixture
def ahead(nodes, plain_entry, clock, monkeypatch):
    """A list that was published 40 days ahead by an opforge that did not compare clocks."""
    with monkeypatch.context() as patch:
        patch.setattr(clocks, "require_right", lambda *_arguments: None)
        clock(40 * DAYS)
        withdraw(nodes.store, OTHER)
    clock(0)
    assert Unverified(nodes.store).of("ci").date > time.time() + 39 * DAYS


def test_a_reader_learns_whose_clock_is_wrong(nodes, builder, plain_entry, ahead, clock, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(withdrawal_lists, "publish", lambda *_arguments: None)
        nodes.push(plain_entry)
    match, rejected = nodes.fetch(builder)
    assert match is None and ", so its signer's clock was ahead" in reasons(rejected)
    assert "and this machine's clock says 20" in reasons(rejected)
    clock(-10 * DAYS)
    assert ", so the clock here is behind: set it" in reasons(nodes.fetch(builder, "other")[1])


def test_where_a_store_does_not_say_both_are_named(nodes, ahead, monkeypatch):
    monkeypatch.setattr(type(nodes.store), "modified", lambda *_arguments: None)
    text = clocks.explained(nodes.store, withdrawal_lists.name_of("ci"), time.time() + DAYS, time.time())
    assert text == "the clock here is behind, or its signer's clock was ahead"
    withdraw(nodes.store, OTHER)  # and publishing goes on


class TestTheWayBack:
    def test_the_next_publication_has_a_date_of_today(self, nodes, builder, plain_entry, ahead):
        nodes.push(plain_entry)
        listed = Unverified(nodes.store).of("ci")
        assert abs(listed.date - time.time()) < 100 and listed.number > time.time() + 39 * DAYS
        assert entries_of(listed) == [OTHER], "what was withdrawn meanwhile stays so"
        assert nodes.fetch(builder)[0].key == plain_entry.key

    def test_who_has_seen_the_wrong_one_takes_the_next_and_never_an_older(
        self, nodes, builder, plain_entry, ahead, monkeypatch
    ):
        path = nodes.folder / "remote" / "v1" / "withdrawals" / "ci.json"
        wrong = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(withdrawal_lists, "publish", lambda *_arguments: None)
            nodes.push(plain_entry)
        assert nodes.fetch(builder)[0] is None
        withdraw(nodes.store, restore=True, renew_after=0.0)
        later = time.time() + remembered_answers.WITHDRAWN_SECONDS + 1
        monkeypatch.setattr(time, "time", lambda: later + 700)
        assert nodes.fetch(builder)[0].key == plain_entry.key
        path.write_bytes(wrong)
        monkeypatch.setattr(time, "time", lambda: later + 2 * remembered_answers.WITHDRAWN_SECONDS)
        nodes.enter("node")
        from opforge.builders.lookup import remotes as lookups
        from opforge.cache.current_store import current_store
        from opforge.remote import remotes, take

        request = lookups.request_for(builder.spec(), current_store())
        usable, rejected = take.judged(nodes.store, remotes.parse(nodes.url), entry_source.WantedEntry(request), True)
        assert not usable and "was seen before" in reasons(rejected)

    def test_a_withdrawal_from_the_future_can_be_taken_back(self, nodes, plain_entry, ahead):
        said = {f"op:{OTHER}": withdrawal_lists.Withdrawal(withdrawal_lists.NOTHING)}
        withdrawal_lists.publish(nodes.store, keys.signer("ci"), "ci", said)
        assert entries_of(Unverified(nodes.store).of("ci")) == []
        withdraw(nodes.store, "1" * 32 + "-" + "1" * 16)
        assert entries_of(Unverified(nodes.store).of("ci")) == ["1" * 32 + "-" + "1" * 16]

    def test_dates_alone_decide_again_once_they_can(self, nodes, ahead, clock, monkeypatch):
        withdraw(nodes.store, "1" * 32 + "-" + "1" * 16)
        monkeypatch.setattr(clocks, "require_right", lambda *_arguments: None)
        clock(50 * DAYS)
        assert withdraw(nodes.store, renew_after=0.0).number == 0


def test_a_server_says_when_a_file_was_written(nodes, tmp_path):
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    from opforge.remote.stores import open_store

    (tmp_path / "x").write_bytes(b"x")

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path))

        def log_message(self, *_arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        store = open_store(f"http://127.0.0.1:{server.server_address[1]}")
        assert abs(store.modified("x") - (tmp_path / "x").stat().st_mtime) < 2
        assert store.modified("missing") is None
        server.shutdown()
