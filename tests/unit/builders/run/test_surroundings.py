"""What may have changed during a run: by what lay around before it, or by the clock of the store's file system."""

from __future__ import annotations

import os
import time

import pytest
from support.text_files import write

from opforge.builders.run.reads import surroundings
from opforge.builders.run.reads.surroundings import look_around
from opforge.cache.filesystem.disk import Disk


class TwoServers(Disk):
    """A folder `other` is on another file system, whose clock is an hour behind."""

    def stamp(self, path):
        stamp = super().stamp(path)
        return stamp and stamp._replace(ctime_ns=stamp.ctime_ns - 3600 * 10**9) if "/other" in path else stamp

    def device(self, path):
        return int("/other" in path)


@pytest.fixture
def around(tmp_path):
    """Looks around before a run that begins now."""

    def look(*own, others=()):
        return look_around(TwoServers(), str(tmp_path), time.time_ns(), map(str, own), map(str, others))

    return look


def test_a_name_that_comes_or_goes_in_a_listed_folder_is_noticed(tmp_path, around):
    write(tmp_path, "a/there.h", "")
    write(tmp_path, "a/gone.h", "")
    seen = around(tmp_path / "a")
    write(tmp_path, "a/new.h", "")
    (tmp_path / "a/gone.h").unlink()
    write(tmp_path, "a/beside.log", "")
    paths = {name: seen.has_come_or_gone(str(tmp_path / "a" / name)) for name in ("there.h", "gone.h", "new.h", "no.h")}
    assert paths == {"there.h": False, "gone.h": True, "new.h": True, "no.h": False}
    assert not seen.has_come_or_gone(str(tmp_path / "a/no/deep.h")), "its first folder is absent, as before"


def test_below_an_unlisted_folder_the_clock_decides(tmp_path, around):
    write(tmp_path, "a/sub/old.h", "")
    time.sleep(0.02)
    seen = around(tmp_path / "a")
    assert not seen.has_come_or_gone(str(tmp_path / "a/sub/old.h"))
    assert not seen.has_come_or_gone(str(tmp_path / "a/sub/absent.h"))
    time.sleep(0.02)
    write(tmp_path, "a/sub/new.h", "")
    assert seen.has_come_or_gone(str(tmp_path / "a/sub/new.h"))


def test_a_moved_folder_and_a_switched_link_are_noticed(tmp_path, around):
    write(tmp_path, "elsewhere/x.h", "")
    write(tmp_path, "empty/none.h", "")
    os.symlink(tmp_path / "empty", tmp_path / "link")
    (tmp_path / "a").mkdir()
    time.sleep(0.02)
    seen = around(tmp_path / "a", tmp_path / "link")
    os.unlink(tmp_path / "link")
    os.symlink(tmp_path / "elsewhere", tmp_path / "link")
    assert seen.has_come_or_gone(str(tmp_path / "link/x.h"))
    os.rename(tmp_path / "elsewhere", tmp_path / "a/sub")
    assert seen.has_come_or_gone(str(tmp_path / "a/sub/x.h"))


def test_a_file_on_the_stores_file_system_is_judged_by_the_clock(tmp_path, around):
    path = write(tmp_path, "a/x.h", "1")
    time.sleep(0.02)
    seen = around(tmp_path / "a")
    assert seen.stamps == {}
    before = Disk().stamp(path)
    assert not seen.has_changed(path, before, None, True)
    time.sleep(0.02)
    write(tmp_path, "a/x.h", "2")
    after = Disk().stamp(path)
    assert seen.has_changed(path, after, None, True) and seen.has_changed(path, after, before, True)
    assert not seen.has_changed(path, after, after, True), "it was the same after the run before"
    assert seen.has_changed(path, None, after, True)


def test_a_file_on_another_file_system_is_stamped_before(tmp_path, around):
    path, text = write(tmp_path, "other/deep/x.h", "1"), write(tmp_path, "other/notes.txt", "1")
    write(tmp_path, "other/.git/x.h", "")
    seen = around(tmp_path / "other")
    assert [*seen.stamps] == [path], "no other kind of file, and no hidden folder"
    disk = TwoServers()
    assert not seen.has_changed(path, disk.stamp(path), None, True)
    write(tmp_path, "other/deep/x.h", "2")
    assert seen.has_changed(path, disk.stamp(path), None, True)
    assert seen.has_changed(path, disk.stamp(path), disk.stamp(path), True)
    assert seen.has_changed(text, disk.stamp(text), None, True), "its state before the run is not known"
    assert not seen.has_changed(text, disk.stamp(text), disk.stamp(text), True)
    assert not seen.has_changed(text, disk.stamp(text), None, False), "what packages installed is taken to be on time"
    assert seen.has_come_or_gone(write(tmp_path, "other/deep/new.h", ""))


def test_a_large_tree_is_looked_at_in_part_the_sources_first(tmp_path, around, monkeypatch):
    monkeypatch.setattr(surroundings, "MAX_FILES", 5)
    for name in ("other/src/op.cpp", *(f"other/base/{number}/x.h" for number in range(20))):
        write(tmp_path, name, "")
    seen = around(tmp_path / "other/src", tmp_path / "other/base")
    assert str(tmp_path / "other/src/op.cpp") in seen.stamps and len(seen.stamps) < 10
