"""Compiled graphs of other machines."""

from __future__ import annotations

from opforge.cache.current import current_store
from opforge.graphs.remote import Remotes
from opforge.graphs.topic import Topic
from opforge.remote import take


def test_with_a_damaged_trust_file_nothing_is_claimed_and_nobody_is_waited_for(nodes, monkeypatch):
    nodes.trust_file().write_text("{")
    claimed = []
    monkeypatch.setattr(take.ConfiguredRemotes, "claim", lambda *words: claimed.append(words))
    assert not Remotes(Topic("relu", *[""] * 6), current_store()).fetch(300.0)
    assert claimed == []
