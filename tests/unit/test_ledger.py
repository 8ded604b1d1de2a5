"""The running sum of a store's bytes: never too low for long, and no build walks the store for it."""

from __future__ import annotations

import os
import shutil

import pytest
from made_up_store import MadeUpStore

from opforge.cache import ledger, objects, upkeep
from opforge.cache.inputs import Inputs


@pytest.fixture
def made(tmp_path):
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


def unwalked(made, monkeypatch):
    """The sum, by its lines alone."""
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "count", lambda _layout: pytest.fail("the store was walked"))
        return ledger.total(made.layout)


def test_the_first_look_walks_and_the_next_reads(made, monkeypatch):
    made.add("relu", size=5000)
    assert ledger.total(made.layout) == ledger.count(made.layout) > 5000
    assert unwalked(made, monkeypatch) == ledger.count(made.layout)


def test_what_is_published_and_evicted_is_added_and_taken_away(made, monkeypatch):
    ledger.measure(made.layout)
    gone = made.add("relu", size=5000)
    made.add("adam", size=7000)
    path = os.path.join(made.roots["own"], "a.o")
    with open(path, "wb") as file:
        file.write(b"o" * 3000)
    objects.keep(made.layout, "unit", path, Inputs(()))
    assert unwalked(made, monkeypatch) == ledger.count(made.layout) > 15_000
    upkeep.remove(made.layout, upkeep.everything(made.layout, {gone}))
    assert unwalked(made, monkeypatch) == ledger.count(made.layout) < 11_500
    upkeep.remove(made.layout, upkeep.everything(made.layout))
    assert unwalked(made, monkeypatch) == ledger.count(made.layout) == 0


def test_what_comes_while_the_store_is_walked_is_not_lost(made, monkeypatch):
    made.add("relu", size=5000)
    real = ledger.count

    def slow(layout):
        found = real(layout)  # the walk had passed when the other entry came
        made.add("adam", size=7000)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "count", slow)
        ledger.measure(made.layout)
    assert unwalked(made, monkeypatch) == ledger.count(made.layout)


def test_of_two_walks_at_once_the_later_one_counts(made, monkeypatch):
    made.add("relu", size=5000)
    real = ledger.count

    def overtaken(layout):
        monkeypatch.setattr(ledger, "count", real)
        ledger.measure(layout)
        return 1  # what the walk that began first would say

    monkeypatch.setattr(ledger, "count", overtaken)
    ledger.measure(made.layout)
    assert unwalked(made, monkeypatch) == ledger.count(made.layout)


@pytest.mark.parametrize("content", [b"", b"+5\n", b"=x\n", b"=5\nnonsense\n", b"=1\n" + b"+1\n" * ledger.LONGEST])
def test_lines_that_tell_nothing_are_replaced_by_a_walk(made, monkeypatch, content):
    made.add("relu", size=5000)
    with open(made.layout.path(ledger.FILE), "wb") as file:
        file.write(content)
    assert ledger.total(made.layout) == ledger.count(made.layout)
    assert unwalked(made, monkeypatch) == ledger.count(made.layout)


def test_a_store_that_cannot_be_written_is_walked(made, monkeypatch):
    made.add("relu", size=5000)
    monkeypatch.setattr(os, "replace", lambda *_paths: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    assert ledger.total(made.layout) == ledger.count(made.layout)


def test_a_note_without_a_store_harms_nothing(made):
    shutil.rmtree(made.layout.root)
    ledger.note(made.layout, 5)
    assert not os.path.exists(made.layout.root)
