"""The path names of a store, as they are documented."""

from __future__ import annotations

from opforge.cache.layout import Layout


def test_the_paths_are_as_documented():
    layout = Layout("/s")
    assert str(layout) == "/s"
    assert layout.plan("p") == "/s/v1/plans/p"
    assert layout.entry("e") == "/s/v1/entries/e"
    assert layout.description("d") == "/s/v1/descriptions/d"
    assert layout.path("locks", "p") == "/s/v1/locks/p"
