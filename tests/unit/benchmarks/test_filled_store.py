"""Stores that are filled with copies of one entry."""

from __future__ import annotations

import errno
import os

import pytest


def write_store_with_one_entry(root):
    for area, key, name, text in [
        ("plans", "plan0", "entry0-roots.json", "a stat record"),
        ("entries", "entry0", "manifest.json", "a manifest"),
        ("entries", "entry0", "op.so", "a library"),
        ("descriptions", "described0", "entry0", ""),
    ]:
        folder = root / area / key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_filled_store_has_the_requested_number_of_entries_each_with_a_stat_record_and_a_description(tmp_path):
    from benchmarks.store.filled_store import fill

    write_store_with_one_entry(tmp_path)
    fill(str(tmp_path), 5)
    assert [len(list((tmp_path / area).iterdir())) for area in ("plans", "entries", "descriptions")] == [5, 5, 5]
    key = f"{3:032x}"
    assert (tmp_path / "plans" / key / f"{key}-roots.json").read_text() == "a stat record"
    assert (tmp_path / "entries" / key / "manifest.json").read_text() == "a manifest"
    assert (tmp_path / "descriptions" / key / key).exists()


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
