"""Listings of a store: entries with their fields, areas with their sizes, nothing that is being removed."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from opforge.cache.layout import Layout
from opforge.cache.maintenance import listing


def test_a_store_that_does_not_exist_holds_nothing(tmp_path):
    layout = Layout(str(tmp_path / "nowhere"))
    assert listing.entries(layout) == [] and listing.areas(layout) == []
    assert not os.path.exists(layout.root)


def test_an_entry_is_listed_with_its_fields(fake_store):
    key = fake_store.add("relu", size=500)
    (entry,) = listing.entries(fake_store.layout)
    assert (entry.key, entry.op, entry.abi, entry.target) == (key, "relu", "c", "cpu:x86-64-v3")
    assert entry.path == fake_store.library(key) and entry.problem == "" and entry.seconds == 1.5
    assert entry.size > 500
    assert abs(entry.built - time.time()) < 60


def test_the_last_use_is_the_time_of_the_newest_pointer(fake_store):
    key = fake_store.add()
    fake_store.use(key, time.time() + 500)
    (entry,) = listing.entries(fake_store.layout)
    assert 400 < entry.used - entry.built < 600


def test_entries_are_sorted_by_op(fake_store):
    for op in ("lion", "adam", "relu"):
        fake_store.add(op)
    assert [entry.op for entry in listing.entries(fake_store.layout)] == ["adam", "lion", "relu"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "file": "../a"}'])
def test_an_entry_with_a_broken_record_is_listed_with_its_problem(fake_store, content):
    folder = fake_store.layout.entry(fake_store.add())
    with open(os.path.join(folder, "record.json"), "w") as file:
        file.write(content)
    (entry,) = listing.entries(fake_store.layout)
    assert entry.problem == "its record cannot be read" and entry.path == folder


def test_an_entry_of_another_user_is_listed_with_its_problem_and_hides_no_other(fake_store, monkeypatch):
    foreign, own = fake_store.add("relu"), fake_store.add("adam")
    fake_store.deny_access(monkeypatch, foreign)
    by_key = {entry.key: entry for entry in listing.entries(fake_store.layout)}
    assert set(by_key) == {foreign, own} and by_key[own].problem == ""
    assert by_key[foreign].problem == "its record cannot be read"
    assert by_key[foreign].path == fake_store.layout.entry(foreign)


def test_an_entry_that_is_being_removed_is_left_out(fake_store):
    os.mkdir(fake_store.layout.entry("half"))
    with open(fake_store.layout.path("entries", "stray"), "w"):
        pass
    assert listing.entries(fake_store.layout) == []


def test_areas_count_files_and_bytes(fake_store):
    key = fake_store.add(size=700)
    areas = {area.name: area for area in listing.areas(fake_store.layout)}
    assert areas["entries"].files == 3
    assert areas["entries"].size == listing.entries(fake_store.layout)[0].size
    assert areas["plans"].files == 1 and "quarantine" not in areas
    shutil.rmtree(fake_store.layout.entry(key))
    assert "entries" not in {area.name for area in listing.areas(fake_store.layout)}
