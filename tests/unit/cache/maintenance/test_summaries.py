"""Summaries: a listing reads a record once, and again if it has changed."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from opforge.cache.maintenance import listing, summaries
from opforge.cache.records import entry as entries


def lines(fake_store):
    with open(fake_store.layout.path(summaries.FILE), "rb") as file:
        return file.read().splitlines()


def list_without_records(fake_store, monkeypatch):
    """Returns the listing; fails if a record is read."""
    with monkeypatch.context() as patch:
        patch.setattr(summaries, "read_record", lambda path: pytest.fail(f"{path} was read"))
        return listing.entries(fake_store.layout)


def test_a_second_listing_reads_no_record_and_is_the_same(fake_store, monkeypatch):
    fake_store.add("relu")
    fake_store.add("adam")
    first = listing.entries(fake_store.layout)
    assert [entry.op for entry in first] == ["adam", "relu"] and not any(entry.problem for entry in first)
    assert list_without_records(fake_store, monkeypatch) == first
    fake_store.add("gelu")
    assert [entry.op for entry in listing.entries(fake_store.layout)] == ["adam", "gelu", "relu"]
    assert len(lines(fake_store)) == 3, "one line for each"


def test_a_record_that_has_changed_is_read_again(fake_store):
    path = os.path.join(fake_store.layout.entry(fake_store.add("relu")), "record.json")
    listing.entries(fake_store.layout)
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    record["op"] = "gelu"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(entries.with_record_key(record), file)
    assert [entry.op for entry in listing.entries(fake_store.layout)] == ["gelu"]
    with open(path, "w", encoding="utf-8") as file:
        file.write("{")
    assert [entry.problem for entry in listing.entries(fake_store.layout)] == ["its record cannot be read"]


@pytest.mark.parametrize("line", [b"", b"[", b"null", b'["a"]', b'["a", [1], 1, 2, 3, 4, 5, 6]', b"\xff\xfe"])
def test_a_damaged_line_is_ignored(fake_store, line):
    fake_store.add("relu")
    first = listing.entries(fake_store.layout)
    with open(fake_store.layout.path(summaries.FILE), "wb") as file:
        file.write(line + b"\n")
    assert listing.entries(fake_store.layout) == first


def test_lines_of_entries_that_are_gone_are_dropped_once_there_are_too_many(fake_store, monkeypatch):
    monkeypatch.setattr(summaries, "MAX_STALE_LINES", 2)
    keys = [fake_store.add(f"op{number}") for number in range(6)]
    listing.entries(fake_store.layout)
    for key in keys[1:]:
        shutil.rmtree(fake_store.layout.entry(key))
    listing.entries(fake_store.layout)
    assert [json.loads(line)[0] for line in lines(fake_store)] == keys[:1]


def test_a_read_only_store_can_be_listed(fake_store, monkeypatch):
    fake_store.add("relu")
    real_open = os.open

    def open_read_only(path, flags, *mode):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(30, "read-only")
        return real_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_read_only)
    assert [entry.op for entry in listing.entries(fake_store.layout)] == ["relu"]
