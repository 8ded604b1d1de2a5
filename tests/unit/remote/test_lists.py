"""Which lists of withdrawals count, and when."""

from __future__ import annotations

import types

import pytest
from support.remote.withdrawing import withdraw

from opforge.cache.layout import Layout
from opforge.errors import StoreError
from opforge.remote import remotes, take


def test_a_withdrawal_that_was_read_counts_if_a_later_request_fails(nodes, tmp_path, monkeypatch):
    listed, dropped = withdraw(nodes.store, "0" * 32 + "-" + "0" * 16), []

    def judge(_item, _what, _parse, _trusted, lists, _is_required):
        lists.new.append(listed)
        raise StoreError("the store", "reading a list", "it is away", "Wait")

    monkeypatch.setattr(take, "judge", judge)
    monkeypatch.setattr(take.topics, "read_items", lambda *_: [None])
    monkeypatch.setattr(take.kept, "drop_withdrawn", lambda _layout, read: dropped.append(read))
    kind = types.SimpleNamespace(topic_file=str, needs_withdrawals=True)
    wanted = types.SimpleNamespace(kind=kind, topic="relu", what="relu", layout=Layout(str(tmp_path)))
    (remote,) = remotes.configured()
    with pytest.raises(StoreError, match="it is away", "Wait"):
        take.judged(nodes.store, remote, wanted, False)
    assert dropped == [listed]
