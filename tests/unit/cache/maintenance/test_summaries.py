"""Listings read a line an entry: a manifest is read once, and again when it is another."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support.store.fake_store import MadeUpStore

from opforge.cache.maintenance import listing, summaries


@pytest.fixture
def made(tmp_path):
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


def lines(made):
    with open(made.layout.path(summaries.FILE), "rb") as file:
        return file.read().splitlines()


def unread(made, monkeypatch):
    """The listing, with no manifest read."""
    with monkeypatch.context() as patch:
        patch.setattr(summaries, "_summary", lambda _manifest: pytest.fail("a manifest was read"))
        return listing.entries(made.layout)


def test_a_second_listing_reads_no_manifest_and_says_the_same(made, monkeypatch):
    made.add("relu")
    made.add("adam")
    first = listing.entries(made.layout)
    assert [one.op for one in first] == ["adam", "relu"] and not any(one.problem for one in first)
    assert unread(made, monkeypatch) == first
    made.add("gelu")
    assert [one.op for one in listing.entries(made.layout)] == ["adam", "gelu", "relu"]
    assert len(lines(made)) == 3, "each was added once"


def test_a_manifest_that_has_changed_is_read_again(made):
    result = made.add("relu")
    listing.entries(made.layout)
    path = os.path.join(made.layout.entry(result), "manifest.json")
    with open(path, encoding="utf-8") as file:
        manifest = json.load(file)
    manifest["binary"]["op"] = "gelu"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(manifest, file)
    assert [one.op for one in listing.entries(made.layout)] == ["gelu"]
    with open(path, "w", encoding="utf-8") as file:
        file.write("{")
    assert [one.problem for one in listing.entries(made.layout)] == ["its manifest cannot be read"]


@pytest.mark.parametrize("line", [b"", b"[", b"null", b'["a"]', b'["a", [1], 1, 2, 3, 4, 5, 6]', b"\xff\xfe"])
def test_a_line_that_tells_nothing_is_left_out(made, line):
    made.add("relu")
    first = listing.entries(made.layout)
    with open(made.layout.path(summaries.FILE), "wb") as file:
        file.write(line + b"\n")
    assert listing.entries(made.layout) == first


def test_lines_of_entries_that_are_gone_are_forgotten_in_the_end(made, monkeypatch):
    monkeypatch.setattr(summaries, "MAX_STALE_LINES", 2)
    results = [made.add(f"op{number}") for number in range(6)]
    listing.entries(made.layout)
    for result in results[1:]:
        shutil.rmtree(made.layout.entry(result))
    listing.entries(made.layout)
    assert [json.loads(line)[0] for line in lines(made)] == results[:1]


def test_a_store_that_cannot_be_written_is_listed_all_the_same(made, monkeypatch):
    made.add("relu")
    opened = os.open

    def to_read_only(path, flags, *mode):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(30, "read-only")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", to_read_only)
    assert [one.op for one in listing.entries(made.layout)] == ["relu"]
