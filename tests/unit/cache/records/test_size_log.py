"""The running sum of a store's bytes: it follows what comes and goes, and no build walks the store for it."""

from __future__ import annotations

import os
import shutil

import pytest
from support.store import own_names

from opforge.cache.maintenance import gc
from opforge.cache.records import objects, size_log
from opforge.cache.records.inputs import Inputs


def logged_total(fake_store, monkeypatch):
    """Returns the sum by the log's lines alone; fails if the store is walked."""
    with monkeypatch.context() as patch:
        patch.setattr(size_log, "count", lambda _layout: pytest.fail("the store was walked"))
        return size_log.total(fake_store.layout)


def test_the_first_total_walks_and_the_next_reads_the_log(fake_store, monkeypatch):
    fake_store.add("relu", size=5000)
    assert size_log.total(fake_store.layout) == size_log.count(fake_store.layout) > 5000
    assert logged_total(fake_store, monkeypatch) == size_log.count(fake_store.layout)


def test_publications_are_added_and_evictions_subtracted(fake_store, monkeypatch):
    size_log.measure(fake_store.layout)
    key = fake_store.add("relu", size=5000)
    fake_store.add("adam", size=7000)
    path = os.path.join(fake_store.root_paths["own"], "a.o")
    with open(path, "wb") as file:
        file.write(b"o" * 3000)
    objects.keep(fake_store.layout, own_names.EXAMPLES["objects"], path, Inputs(()))
    assert logged_total(fake_store, monkeypatch) == size_log.count(fake_store.layout) > 15_000
    gc.remove(fake_store.layout, gc.everything(fake_store.layout, {key}))
    assert logged_total(fake_store, monkeypatch) == size_log.count(fake_store.layout) < 11_500
    gc.remove(fake_store.layout, gc.everything(fake_store.layout))
    assert logged_total(fake_store, monkeypatch) == size_log.count(fake_store.layout) == 0


def test_an_entry_that_comes_during_the_walk_is_counted(fake_store, monkeypatch):
    fake_store.add("relu", size=5000)
    real = size_log.count

    def slow(layout):
        size = real(layout)  # the walk is over when the other entry comes
        fake_store.add("adam", size=7000)
        return size

    with monkeypatch.context() as patch:
        patch.setattr(size_log, "count", slow)
        size_log.measure(fake_store.layout)
    assert logged_total(fake_store, monkeypatch) == size_log.count(fake_store.layout)


def test_the_later_of_two_walks_at_once_counts(fake_store, monkeypatch):
    fake_store.add("relu", size=5000)
    real = size_log.count

    def overtaken(layout):
        monkeypatch.setattr(size_log, "count", real)
        size_log.measure(layout)
        return 1  # what the walk that began first would count

    monkeypatch.setattr(size_log, "count", overtaken)
    size_log.measure(fake_store.layout)
    assert logged_total(fake_store, monkeypatch) == size_log.count(fake_store.layout)


@pytest.mark.parametrize("content", [b"", b"+5\n", b"=x\n", b"=5\nnonsense\n", b"=1\n" + b"+1\n" * size_log.MAX_BYTES])
def test_a_damaged_log_is_replaced_by_a_walk(fake_store, monkeypatch, content):
    fake_store.add("relu", size=5000)
    with open(fake_store.layout.path(size_log.FILE), "wb") as file:
        file.write(content)
    assert size_log.total(fake_store.layout) == size_log.count(fake_store.layout)
    assert logged_total(fake_store, monkeypatch) == size_log.count(fake_store.layout)


def test_a_read_only_store_is_walked(fake_store, monkeypatch):
    fake_store.add("relu", size=5000)
    monkeypatch.setattr(os, "replace", lambda *_paths: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    assert size_log.total(fake_store.layout) == size_log.count(fake_store.layout)


def test_appending_without_a_store_does_nothing(fake_store):
    shutil.rmtree(fake_store.layout.root)
    size_log.append(fake_store.layout, 5)
    assert not os.path.exists(fake_store.layout.root)
