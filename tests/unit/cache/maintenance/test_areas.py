"""Every area of a store is bounded by the enforcement after a build, and so are the folders beside the store."""

from __future__ import annotations

import os
import time

import pytest
from support import text_files
from support.store import own_names

from opforge.cache import current_store, staging
from opforge.cache.areas import DAY
from opforge.cache.layout import Layout
from opforge.cache.maintenance import gc, limits, unneeded
from opforge.cache.records import objects, pins, size_log
from opforge.cache.records.inputs import Inputs
from opforge.cache.records.validity import Observation
from opforge.foundation import remembered_values, remembered_values_writer

BOUNDED_OTHERWISE = {
    "entries": "size and age",
    "plans": "their entries",
    "descriptions": "their entries",
    "staging": "the life of its builder",
    "pins": "the user",
}


def enforce_in(days, fake_store, monkeypatch, max_size=None, max_age=None):
    """Enforces the limits as a build does that is made this many days later."""
    monkeypatch.setattr(limits, "now_in", lambda _folder: time.time() + days * DAY)
    monkeypatch.setattr(remembered_values_writer, "now_in", lambda _folder: time.time() + days * DAY)
    return limits.enforce(fake_store.layout, max_size, max_age)


def test_every_area_is_bounded(fake_store):
    """A new area needs an age in `areas.AREAS`, or a bound of its own."""
    areas = {*current_store.FOLDERS, *unneeded.MAX_AGE_SECONDS, *BOUNDED_OTHERWISE, *size_log.RECLAIMABLE}
    assert areas == {*unneeded.MAX_AGE_SECONDS, *BOUNDED_OTHERWISE}
    assert areas <= {*gc.KINDS, "entries"}


@pytest.mark.parametrize("area", unneeded.MAX_AGE_SECONDS)
def test_what_is_old_is_removed_after_a_build_without_any_limit(fake_store, monkeypatch, area):
    os.makedirs(fake_store.layout.path(area), exist_ok=True)
    text_files.write(fake_store.layout.path(area), own_names.EXAMPLES[area], "text")
    days = unneeded.MAX_AGE_SECONDS[area] / DAY
    assert enforce_in(days - 0.5, fake_store, monkeypatch) == 0
    assert enforce_in(days + 0.6, fake_store, monkeypatch) == 1
    assert not os.listdir(fake_store.layout.path(area))


def test_the_quarantine_counts_and_is_emptied_before_entries(fake_store, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    damaged, kept = fake_store.add("relu", size=20_000), fake_store.add("adam", size=20_000)
    size_log.measure(fake_store.layout)
    fake_store.damage(damaged)
    assert fake_store.store.get(fake_store.plan("relu"), fake_store.root_paths)[0] is None
    assert size_log.total(fake_store.layout) == size_log.count(fake_store.layout) > 40_000
    limits.enforce(fake_store.layout, 30_000, None)
    assert fake_store.entry_keys() == {kept} and fake_store.files("quarantine") == []
    assert size_log.total(fake_store.layout) == size_log.count(fake_store.layout)


def test_a_file_that_the_limit_counts_is_removed_as_a_folder_is(fake_store, monkeypatch):
    """As a tuning result that was set aside."""
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    path = text_files.write(fake_store.layout.path("objects"), "cuda-sm_90-8.json", "x" * 9_000)
    assert staging.set_aside(fake_store.layout, path, "it is damaged")
    size_log.measure(fake_store.layout)
    limits.enforce(fake_store.layout, 8_000, None)
    assert fake_store.files("quarantine") == [] and size_log.count(fake_store.layout) == 0


def test_the_memory_of_a_machine_that_is_gone_is_removed(fake_store, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert remembered_values_writer.remember("look-up", remembered_values.FlatStamps(), {})
    (own,) = (tmp_path / "cache" / "opforge" / "machine").iterdir()
    gone, other, notes = own.with_name("gone"), own.with_name("notes"), own.with_name("own")
    for folder in (gone / remembered_values.LOOKUPS, other, notes / remembered_values.LOOKUPS):
        folder.mkdir(parents=True)
        text_files.write(folder, f"{own_names.KEY}.json" if folder.parent == gone else "file", "text")
    (own.with_name("link")).symlink_to(gone)
    enforce_in(89, fake_store, monkeypatch)
    assert gone.exists()
    enforce_in(91, fake_store, monkeypatch)
    assert not gone.exists() and own.exists() and (other / "file").exists()
    assert (notes / remembered_values.LOOKUPS / "file").exists(), "a file of the user's"


# -- entries that nothing names ----------------------------------------------------------------------------------------


def forget_pointers(fake_store, key):
    for area in ("plans", "descriptions"):
        for parent, _folders, names in os.walk(fake_store.layout.path(area)):
            if key in names:
                os.unlink(os.path.join(parent, key))


def test_an_entry_that_nothing_names_is_removed_after_its_grace(fake_store, monkeypatch):
    """As after `--force`, when the library has other bytes, or when a process is killed before it wrote the pointer."""
    replaced, kept = fake_store.add("relu"), fake_store.add("adam")
    forget_pointers(fake_store, replaced)
    limits.enforce(fake_store.layout, None, None)
    assert fake_store.entry_keys() == {replaced, kept}, "it may have been published just now"
    os.unlink(fake_store.layout.path(limits.SWEPT))
    enforce_in(0.1, fake_store, monkeypatch)
    assert fake_store.entry_keys() == {kept}


def test_a_pinned_entry_that_nothing_names_stays(fake_store, monkeypatch):
    key = fake_store.add("relu")
    forget_pointers(fake_store, key)
    pins.pin(fake_store.layout, key)
    enforce_in(1, fake_store, monkeypatch)
    assert fake_store.entry_keys() == {key}


@pytest.mark.parametrize("area", ["plans", "descriptions"])
@pytest.mark.parametrize("state", ["link", "gone", "unreadable"])
def test_no_entry_is_taken_for_unnamed_if_pointers_cannot_be_read(fake_store, monkeypatch, tmp_path, area, state):
    key = fake_store.add("relu")
    forget_pointers(fake_store, key)
    folder = fake_store.layout.path(area)
    os.rename(folder, tmp_path / "elsewhere")
    if state == "link":
        os.symlink(tmp_path / "elsewhere", folder)
    elif state == "unreadable":
        os.mkdir(folder)
        scandir = os.scandir

        def deny(path):
            if path == folder:
                raise PermissionError(13, "Permission denied", path)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", deny)
    enforce_in(1, fake_store, monkeypatch)
    assert fake_store.entry_keys() == {key}


def test_an_entry_keeps_its_newest_descriptions(fake_store, monkeypatch):
    key = fake_store.add("relu")
    for number in range(unneeded.KEPT_DESCRIPTIONS + 4):
        folder = fake_store.layout.description(f"{number:032x}")
        os.mkdir(folder)
        text_files.write(folder, key, "")
        os.utime(os.path.join(folder, key), (number + 1, number + 1))
    enforce_in(1, fake_store, monkeypatch)
    names = sorted(os.listdir(fake_store.layout.path("descriptions")))
    assert len(names) == unneeded.KEPT_DESCRIPTIONS, "no empty folder stays"
    assert f"{0:032x}" not in names and f"{unneeded.KEPT_DESCRIPTIONS + 3:032x}" in names
    assert fake_store.entry_keys() == {key}


@pytest.mark.parametrize("area", ["plans", "descriptions"])
def test_an_empty_folder_of_pointers_is_removed_once_it_is_old(fake_store, monkeypatch, area):
    os.mkdir(fake_store.layout.path(area, "0" * 32))
    assert enforce_in(0, fake_store, monkeypatch) == 0
    os.unlink(fake_store.layout.path(limits.SWEPT))
    assert enforce_in(0.1, fake_store, monkeypatch) == 1
    assert os.listdir(fake_store.layout.path(area)) == []


def test_a_folder_of_pointers_that_is_filled_meanwhile_stays(fake_store):
    folder = fake_store.layout.path("plans", "0" * 32)
    os.mkdir(folder)
    planned = gc.over_limit(fake_store.layout, time.time() + DAY)
    text_files.write(folder, "entry", "")
    assert gc.remove(fake_store.layout, planned) == [] and os.listdir(folder) == ["entry"]


# -- clocks and use ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [-400, 400])
def test_a_wrong_clock_of_this_machine_evicts_nothing(fake_store, monkeypatch, days):
    """Ages are by the clock of the file system: that of the server, if the store is on a network file system."""
    key = fake_store.add("relu")
    text_files.write(fake_store.layout.path("logs"), "log", "text")
    monkeypatch.setattr(time, "time", lambda real=time.time: real() + days * DAY)
    limits.enforce(fake_store.layout, 1, DAY)
    assert fake_store.entry_keys() == {key} and fake_store.files("logs") == ["log"]


def test_objects_that_are_reused_are_not_evicted_first(fake_store, monkeypatch, tmp_path):
    (tmp_path / "a.o").write_bytes(b"o" * 10_000)
    source = fake_store.add("relu")
    build = fake_store.store.own.read(source).build()
    daily, unused = "1" * 32, "2" * 32
    for unit in (daily, unused):
        objects.keep(fake_store.layout, unit, str(tmp_path / "a.o"), Inputs.from_json(build["inputs"]))
        for path in (fake_store.layout.path("objects", unit), *unit_files(fake_store, unit)):
            os.utime(path, (1, 1))
    assert reuse(fake_store, daily, tmp_path)
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    limits.enforce(fake_store.layout, size_log.count(fake_store.layout) - 1, None)
    assert os.listdir(fake_store.layout.path("objects")) == [daily]


def unit_files(fake_store, unit):
    folder = fake_store.layout.path("objects", unit)
    return [os.path.join(folder, name) for name in os.listdir(folder)]


def reuse(fake_store, unit, tmp_path):
    seen = Observation(fake_store.root_paths, fake_store.store.disk)
    return objects.reuse(fake_store.layout, unit, seen, str(tmp_path / "target.o"))


def test_a_store_of_another_root_is_not_touched(fake_store, tmp_path):
    assert limits.enforce(Layout(str(tmp_path / "nothing")), 1, 1.0) == 0
    assert not (tmp_path / "nothing").exists()
