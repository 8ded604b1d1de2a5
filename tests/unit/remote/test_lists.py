"""Which lists of withdrawals count, and when."""

from __future__ import annotations

import shutil
import types

import pytest
from support.remote.withdrawing import withdraw

from opforge.cache.layout import Layout
from opforge.errors import StoreBehindError, StoreError
from opforge.remote import remotes, take, withdrawal_lists
from opforge.remote.accepted_statements import Lists
from opforge.remote.signatures import keys, trust_file
from opforge.remote.stores import open_store
from opforge.remote.withdrawal_lists import Withdrawals

ENTRY = "0" * 32 + "-" + "0" * 16


def test_a_withdrawal_that_was_read_counts_if_a_later_request_fails(nodes, tmp_path, monkeypatch):
    listed, dropped = withdraw(nodes.store, "0" * 32 + "-" + "0" * 16), []

    def judge(_item, _what, _parse, _trusted, lists, _is_required):
        lists.new.append(listed)
        raise StoreError("the store", "reading a list", "it is away", "Wait")

    monkeypatch.setattr(take, "judge", judge)
    monkeypatch.setattr(take.topics, "read_items", lambda *_: [None])
    monkeypatch.setattr(take.reverification, "drop_withdrawn", lambda _layout, read: dropped.append(read))
    kind = types.SimpleNamespace(topic_file=str, needs_withdrawals=True)
    wanted = types.SimpleNamespace(kind=kind, topic="relu", what="relu", layout=Layout(str(tmp_path)))
    (remote,) = remotes.configured()
    with pytest.raises(StoreError, match="it is away"):
        take.judged(nodes.store, remote, wanted, False)
    assert dropped == [listed]


@pytest.fixture
def lists(nodes, monkeypatch):
    """The lists of two keys: that of `lab` names a release of acme/relu, and that of `ci` is held back."""
    nodes.trust(nodes.public, keys.create("lab"))
    listed = Withdrawals("lab", 1.0, released={"package:acme/relu": {"2.3": "0" * 64}})

    def of(_lists, signer):
        if signer.key.name == "ci":
            raise StoreBehindError("the store", "the list of ci is not used", "Wait")
        return listed

    monkeypatch.setattr(Lists, "of", of)
    return Lists(nodes.store, remotes.configured()[0], trust_file.read(), False)


def test_a_list_that_is_held_back_stops_no_release_of_another_key(lists):
    assert lists.released("package:acme/relu") == ({"2.3": ["0" * 64]}, ["the list of ci is not used"])


def test_a_package_that_only_a_list_that_is_held_back_may_name_is_an_error(lists):
    with pytest.raises(StoreBehindError, match="the list of ci is not used"):
        lists.released("package:acme/gelu")


def test_without_a_cache_the_list_of_another_store_is_refused_if_it_lacks_a_withdrawal(nodes, tmp_path):
    (remote,), name = remotes.configured(), withdrawal_lists.name_of("ci")
    nodes.trust(nodes.public)
    (signer,) = trust_file.read().keys
    withdraw(nodes.store, ENTRY)
    assert Lists(nodes.store, remote, trust_file.read(), True).of(signer)
    (tmp_path / "other").mkdir()
    other = open_store(f"file://{tmp_path}/other")
    withdraw(other, "1" * 32 + "-" + "1" * 16)
    withdraw(other, "2" * 32 + "-" + "2" * 16)
    newer, there = (store.get(name, withdrawal_lists.MAX_BYTES) for store in (other, nodes.store))
    assert nodes.store.put_if_unchanged(name, newer.data, there.version)
    shutil.rmtree(nodes.folder / "node-caches", ignore_errors=True)
    nodes.enter("another")
    with pytest.raises(StoreBehindError, match="it is not the list seen before, and lacks entries of it"):
        Lists(nodes.store, remote, trust_file.read(), True).of(signer)
