"""The running sum of a store's bytes: never too low for long, and no build walks the store for it."""

from __future__ import annotations

import os
import shutil

import pytest
from support.store.fake_store import MadeUpStore

from opforge.cache.maintenance import gc
from opforge.cache.records import objects, size_log
from opforge.cache.records.inputs import Inputs


@pytest.fixture
def made(tmp_path):
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


def unwalked(made, monkeypatch):
    """The sum, by its lines alone."""
    with monkeypatch.context() as patch:
        patch.setattr(size_log, "count", lambda _layout: pytest.fail("the store was walked"))
        return size_log.total(made.layout)


def test_the_first_look_walks_and_the_next_reads(made, monkeypatch):
    made.add("relu", size=5000)
    assert size_log.total(made.layout) == size_log.count(made.layout) > 5000
    assert unwalked(made, monkeypatch) == size_log.count(made.layout)


def test_what_is_published_and_evicted_is_added_and_taken_away(made, monkeypatch):
    size_log.measure(made.layout)
    gone = made.add("relu", size=5000)
    made.add("adam", size=7000)
    path = os.path.join(made.roots["own"], "a.o")
    with open(path, "wb") as file:
        file.write(b"o" * 3000)
    objects.keep(made.layout, "unit", path, Inputs(()))
    assert unwalked(made, monkeypatch) == size_log.count(made.layout) > 15_000
    gc.remove(made.layout, gc.everything(made.layout, {gone}))
    assert unwalked(made, monkeypatch) == size_log.count(made.layout) < 11_500
    gc.remove(made.layout, gc.everything(made.layout))
    assert unwalked(made, monkeypatch) == size_log.count(made.layout) == 0


def test_what_comes_while_the_store_is_walked_is_not_lost(made, monkeypatch):
    made.add("relu", size=5000)
    real = size_log.count

    def slow(layout):
        found = real(layout)  # the walk had passed when the other entry came
        made.add("adam", size=7000)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(size_log, "count", slow)
        size_log.measure(made.layout)
    assert unwalked(made, monkeypatch) == size_log.count(made.layout)


def test_of_two_walks_at_once_the_later_one_counts(made, monkeypatch):
    made.add("relu", size=5000)
    real = size_log.count

    def overtaken(layout):
        monkeypatch.setattr(size_log, "count", real)
        size_log.measure(layout)
        return 1  # what the walk that began first would say

    monkeypatch.setattr(size_log, "count", overtaken)
    size_log.measure(made.layout)
    assert unwalked(made, monkeypatch) == size_log.count(made.layout)


@pytest.mark.parametrize("content", [b"", b"+5\n", b"=x\n", b"=5\nnonsense\n", b"=1\n" + b"+1\n" * size_log.MAX_BYTES])
def test_lines_that_tell_nothing_are_replaced_by_a_walk(made, monkeypatch, content):
    made.add("relu", size=5000)
    with open(made.layout.path(size_log.FILE), "wb") as file:
        file.write(content)
    assert size_log.total(made.layout) == size_log.count(made.layout)
    assert unwalked(made, monkeypatch) == size_log.count(made.layout)


def test_a_store_that_cannot_be_written_is_walked(made, monkeypatch):
    made.add("relu", size=5000)
    monkeypatch.setattr(os, "replace", lambda *_paths: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    assert size_log.total(made.layout) == size_log.count(made.layout)


def test_a_note_without_a_store_harms_nothing(made):
    shutil.rmtree(made.layout.root)
    size_log.append(made.layout, 5)
    assert not os.path.exists(made.layout.root)
