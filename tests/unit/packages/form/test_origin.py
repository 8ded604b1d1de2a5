"""Which state of the hub a release came from."""

from __future__ import annotations

import pytest

from opforge.packages.form import origin


@pytest.mark.parametrize(
    ("source", "is_it"),
    [
        ("Acme/Base@abc#main", True),
        ("hf:Acme/Base@abc#main", True),
        ("Acme/Base@main", True),
        ("Acme/Base@abc", False),
        ("Acme/Other@abc#main", False),
        ("https://acme@main/base", False),
        ("", False),
    ],
)
def test_a_revision_is_known_by_where_a_release_came_from(source, is_it):
    assert origin.is_revision(source, "acme/base", "main") == is_it


@pytest.mark.parametrize("name", ["v1", "a@b#c", ""])
def test_a_state_is_its_commit_and_its_name(name):
    source = origin.text("Acme/Base", "abc", name)
    assert origin.is_revision(source, "acme/base", "abc")
    assert origin.is_revision(source, "acme/base", name) == bool(name)
