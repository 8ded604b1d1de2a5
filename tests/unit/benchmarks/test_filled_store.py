"""Stores that are filled with copies of one entry."""

from __future__ import annotations

import errno
import os

import pytest
from support.store.fake_store import FakeStore

from opforge.cache.maintenance import listing, pointers


@pytest.fixture
def store(own_store, tmp_path):
    """A store with one entry."""
    store = FakeStore(own_store, tmp_path / "src")
    store.add("relu")
    return store


def test_a_filled_store_has_the_requested_number_of_valid_entries_each_with_its_pointers(store):
    from benchmarks.store.filled_store import fill

    fill(store.layout.path(), 5)
    assert [len(os.listdir(store.layout.path(area))) for area in ("plans", "entries", "descriptions")] == [5, 5, 5]
    entries = listing.entries(store.layout)
    assert [(entry.op, entry.problem) for entry in entries] == [("relu", "")] * 5
    assert set(pointers.read(store.layout).last_uses()) == {entry.key for entry in entries}
    assert {name for key in os.listdir(store.layout.path("descriptions")) for name in pointers_to(store, key)} == (
        store.entry_keys()
    )
    names = {name for entry in entries for name in os.listdir(os.path.dirname(entry.path))}
    assert len(names) == 3, "every entry has the files of the first"


def pointers_to(store, description):
    """Returns the names of the entries that a description names."""
    return os.listdir(store.layout.description(description))


def test_when_a_file_has_as_many_links_as_it_may_have_a_copy_of_it_is_linked(tmp_path, monkeypatch):
    from benchmarks.store.filled_store import Link

    library = tmp_path / "op.so"
    library.write_text("a library")
    link = os.link

    def at_most_three(source, target):
        if os.stat(source).st_nlink == 3:
            raise OSError(errno.EMLINK, "too many links")
        link(source, target)

    monkeypatch.setattr(os, "link", at_most_three)
    library_link = Link(str(library))
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        library_link.create(str(tmp_path / str(number)))
    copies = [tmp_path / str(number) / "op.so" for number in range(4)]
    assert [path.read_text() for path in copies] == ["a library"] * 4
    assert len({path.stat().st_ino for path in copies}) == 2


def test_other_errors_of_a_link_are_raised(tmp_path):
    from benchmarks.store.filled_store import Link

    with pytest.raises(FileNotFoundError):
        Link(str(tmp_path / "absent.so")).create(str(tmp_path))
