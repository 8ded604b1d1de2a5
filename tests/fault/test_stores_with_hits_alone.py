"""A store in which nothing is built any more is swept too, and a hit pays for it at most once a day."""

from __future__ import annotations

import ctypes
import os
import time

import pytest
from support import sample_ops, text_files
from support.store import own_names

import opforge
from opforge.builders import toolchains
from opforge.cache.layout import Layout
from opforge.cache.maintenance import gc, limits, unneeded
from opforge.errors import CompileError, SettingError, ToolchainNotFoundError

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
HOUR, OLD = 3600.0, own_names.EXAMPLES["logs"]


class Kept:
    """A store with an op that is used, and an old log."""

    def __init__(self, folder, root):
        self.folder, self.layout = folder, Layout(str(root))
        self.declare = lambda: sample_ops.builder_class(folder, "plain", abi="c")
        sample_ops.plain_op(folder)
        self.key = self.declare()().build().key
        self.set_times(2 * unneeded.DAY)
        text_files.write(self.layout.path("logs"), OLD, "text")
        os.utime(self.layout.path("logs", OLD), (1, 1))

    def set_times(self, seconds):
        """Sets the last use of every entry, and the last sweep, to this many seconds ago."""
        at = time.time() - seconds
        for pointer in self.pointers():
            os.utime(pointer, (at, at))
        if os.path.exists(self.layout.path(limits.SWEPT)):
            os.utime(self.layout.path(limits.SWEPT), (at, at))

    def pointers(self):
        return [
            os.path.join(parent, name)
            for area in ("plans", "descriptions")
            for parent, _folders, names in os.walk(self.layout.path(area))
            for name in names
        ]

    def last_use(self):
        return max(os.stat(pointer).st_mtime for pointer in self.pointers())

    def hit(self):
        assert self.declare()().build().origin == "cache"


@pytest.fixture
def kept(tmp_path, own_store, monkeypatch):
    """A store with an op that is used, and a log that is old by its mtime and its ctime."""
    store = Kept(tmp_path / "op", own_store)
    monkeypatch.setattr(unneeded, "MAX_AGE_SECONDS", {**unneeded.MAX_AGE_SECONDS, "logs": -1.0})
    return store


def test_a_hit_sweeps_a_store_that_was_not_swept_for_a_day(kept):
    kept.hit()
    assert os.listdir(kept.layout.path("logs")) == []
    assert os.listdir(kept.layout.path("entries")) == [kept.key]
    assert kept.last_use() > time.time() - HOUR


def test_a_hit_evicts_what_others_no_longer_use(kept, monkeypatch):
    other = sample_ops.plain_op(kept.folder.parent / "other", name="other")().build().key
    kept.set_times(200 * unneeded.DAY)
    # An entry's age counts from its publication too, which was just now.
    monkeypatch.setattr(limits, "now_in", lambda _folder: time.time() + 181 * unneeded.DAY)
    monkeypatch.setattr(os, "utime", set_time_in_the_future(os.utime))
    kept.hit()
    assert kept.key in os.listdir(kept.layout.path("entries"))
    assert other not in os.listdir(kept.layout.path("entries"))


def set_time_in_the_future(utime):
    """Returns an utime() of the file system whose clock is 181 days ahead."""

    def set_time(path, times=None, **options):
        utime(path, times or (time.time() + 181 * unneeded.DAY,) * 2, **options)

    return set_time


def test_hits_within_an_hour_do_not_look(kept, monkeypatch):
    kept.set_times(HOUR / 2)
    monkeypatch.setattr(limits, "enforce", lambda *_arguments: pytest.fail("a hit paid for it"))
    kept.hit()
    assert os.listdir(kept.layout.path("logs")) == [OLD]


def test_a_store_is_swept_by_hits_once_a_day(kept, monkeypatch):
    kept.hit()
    sweeps = []
    monkeypatch.setattr(gc, "over_limit", lambda *_arguments: sweeps.append(1) or [])
    for hours in (2, 23, 25):
        kept.set_times(hours * HOUR)
        kept.hit()
    assert len(sweeps) == 1


def test_a_limit_that_cannot_be_read_stops_no_hit(kept, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "plenty")
    kept.hit()
    assert os.listdir(kept.layout.path("logs")) == [OLD]
    with pytest.raises(SettingError):
        sample_ops.plain_op(kept.folder.parent / "other", name="other")().build()


def test_a_hit_in_a_store_that_cannot_be_swept_is_a_hit(kept, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(gc, "over_limit", refuse)
    kept.hit()


def test_a_use_without_a_compiler_is_noted(kept, monkeypatch):
    """Otherwise, on a machine without a compiler, what is used daily would be evicted first."""

    def find_none(*_arguments):
        raise ToolchainNotFoundError("a compiler", [], "Install one")

    monkeypatch.setattr(toolchains, "find_toolchain", find_none)
    monkeypatch.setenv("OPFORGE_PARANOID", "1")  # what is remembered needs no compiler either
    kept.hit()
    assert kept.last_use() > time.time() - HOUR
    assert os.listdir(kept.layout.path("logs")) == []


def test_a_use_far_in_the_future_is_corrected(kept):
    kept.set_times(-400 * unneeded.DAY)
    kept.hit()
    pointers = [pointer for pointer in kept.pointers() if "/plans/" in pointer]
    assert max(os.stat(pointer).st_mtime for pointer in pointers) < time.time() + HOUR


def test_a_build_that_fails_sweeps_too(kept):
    text_files.write(kept.folder, "plain.cpp", "this is no C++")
    with pytest.raises(CompileError):
        kept.declare()().build()
    assert OLD not in os.listdir(kept.layout.path("logs"))


def test_inline_sources_that_are_used_stay(own_store):
    source = 'extern "C" int one() { return 1; }'
    opforge.load_inline("inline_one", source, abi="c", signatures={"one": (ctypes.c_int, [])})
    (folder,) = (own_store / "v2" / "sources").iterdir()
    os.utime(folder, (1, 1))
    opforge.load_inline("inline_one", source, abi="c", signatures={"one": (ctypes.c_int, [])})
    assert os.stat(folder).st_mtime > time.time() - HOUR
