"""What a store says of itself: entries with their facts, areas with their sizes, and no failure over what is gone."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from support.store.fake_store import MadeUpStore

from opforge.cache.layout import Layout
from opforge.cache.maintenance import listing


@pytest.fixture
def made(tmp_path):
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


def test_a_store_that_does_not_exist_holds_nothing(tmp_path):
    layout = Layout(str(tmp_path / "nowhere"))
    assert listing.entries(layout) == [] and listing.areas(layout) == []
    assert not os.path.exists(layout.root)


def test_an_entry_is_listed_with_its_facts(made):
    result = made.add("relu", size=500)
    (found,) = listing.entries(made.layout)
    assert (found.key, found.op, found.abi, found.target) == (result, "relu", "c", "cpu:x86-64-v3")
    assert found.path == made.library(result) and found.problem == "" and found.seconds == 1.5
    assert found.size > 500
    assert abs(found.built - time.time()) < 60


def test_the_newest_ticket_tells_the_last_use(made):
    result = made.add()
    made.use(result, time.time() + 500)
    (found,) = listing.entries(made.layout)
    assert 400 < found.used - found.built < 600


def test_entries_are_sorted_by_op(made):
    for op in ("lion", "adam", "relu"):
        made.add(op)
    assert [one.op for one in listing.entries(made.layout)] == ["adam", "lion", "relu"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"binary": 3}', '{"binary": {}}', '{"binary": {"file": "../a"}}'])
def test_an_entry_with_a_broken_manifest_is_listed_with_its_problem(made, content):
    result = made.add()
    with open(os.path.join(made.layout.entry(result), "manifest.json"), "w") as file:
        file.write(content)
    (found,) = listing.entries(made.layout)
    assert found.problem == "its manifest cannot be read" and found.path == made.layout.entry(result)


def test_an_entry_of_somebody_else_is_listed_with_its_problem_and_hides_no_other(made, monkeypatch):
    theirs, mine = made.add("relu"), made.add("adam")
    made.close(monkeypatch, theirs)
    found = {one.key: one for one in listing.entries(made.layout)}
    assert set(found) == {theirs, mine} and found[mine].problem == ""
    assert found[theirs].problem == "its manifest cannot be read" and found[theirs].path == made.layout.entry(theirs)


def test_an_entry_that_is_being_removed_is_left_out(made):
    os.mkdir(made.layout.entry("half"))
    with open(made.layout.path("entries", "stray"), "w"):
        pass
    assert listing.entries(made.layout) == []


def test_areas_count_files_and_bytes(made):
    result = made.add(size=700)
    areas = {one.name: one for one in listing.areas(made.layout)}
    assert areas["entries"].files == 2
    assert areas["entries"].size == listing.entries(made.layout)[0].size
    assert areas["plans"].files == 1 and "quarantine" not in areas
    shutil.rmtree(made.layout.entry(result))
    assert "entries" not in {one.name for one in listing.areas(made.layout)}
