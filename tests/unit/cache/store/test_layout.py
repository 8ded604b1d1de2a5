"""The path names of a store, as they are documented."""

from __future__ import annotations

from opforge.cache.layout import Layout, entry_name


def test_the_paths_are_as_documented():
    layout = Layout("/s")
    assert str(layout) == "/s"
    assert layout.plan("p") == "/s/v2/plans/p"
    assert layout.entry("e") == "/s/v2/entries/e"
    assert layout.description("d") == "/s/v2/descriptions/d"
    assert layout.path("locks", "p") == "/s/v2/locks/p"
    assert entry_name("0" * 32, "123456789") == "0" * 32 + "-12345678"
