"""Limits after each build: the size is checked each time, ages once a day; pinned entries stay."""

from __future__ import annotations

import errno
import json
import os
import re
import time

import pytest
from support.store import own_names

from opforge.cache import current_store
from opforge.cache.layout import Layout
from opforge.cache.maintenance import gc, limits
from opforge.cache.records import objects, pins, size_log
from opforge.cache.records.inputs import Inputs
from opforge.errors import CacheDirError, SettingError
from opforge.foundation import settings

DAY = 24 * 3600.0


@pytest.fixture
def fake_store(fake_store, monkeypatch):
    """A store from which an entry can be evicted as soon as it is published."""
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    return fake_store


def total_size(fake_store):
    return size_log.count(fake_store.layout)


def test_a_store_within_its_limits_is_left_alone(fake_store):
    fake_store.add("relu")
    assert limits.enforce(fake_store.layout, 10_000_000, None) == 0
    assert len(fake_store.entry_keys()) == 1


def test_without_limits_the_size_is_not_computed(fake_store, monkeypatch):
    fake_store.add("relu")
    monkeypatch.setattr(size_log, "total", lambda _layout: pytest.fail("it was computed"))
    assert limits.enforce(fake_store.layout, None, None) == 0


def test_a_store_over_its_size_limit_ends_a_tenth_below_it(fake_store, monkeypatch):
    for number in range(6):
        fake_store.add(f"op{number}", size=20_000)
    limit = total_size(fake_store) // 2
    assert limits.enforce(fake_store.layout, limit, None) > 0
    assert 0 < total_size(fake_store) <= limit
    assert len(fake_store.entry_keys()) == 2, "a tenth of the limit is free, and no more was evicted than necessary"
    monkeypatch.setattr(size_log, "count", lambda _layout: pytest.fail("it was walked again"))
    assert limits.enforce(fake_store.layout, limit, None) == 0


def test_nothing_is_evicted_only_because_the_running_sum_is_too_high(fake_store):
    for number in range(3):
        fake_store.add(f"op{number}", size=20_000)
    size_log.measure(fake_store.layout)
    size_log.append(fake_store.layout, 50_000)  # as a build does that publishes while the store is walked
    assert limits.enforce(fake_store.layout, total_size(fake_store) + 1, None) == 0
    assert len(fake_store.entry_keys()) == 3


def test_objects_count_and_are_evicted_first(fake_store):
    key = fake_store.add("relu", size=1000)
    path = os.path.join(fake_store.root_paths["own"], "a.o")
    with open(path, "wb") as file:
        file.write(b"o" * 50_000)
    objects.keep(fake_store.layout, own_names.EXAMPLES["objects"], path, Inputs(()))
    assert limits.enforce(fake_store.layout, 20_000, None) == 1
    assert fake_store.entry_keys() == {key} and fake_store.files("objects") == []


def test_a_pinned_entry_stays_whatever_the_limits(fake_store):
    keep, _other = fake_store.add("relu"), fake_store.add("adam")
    pins.pin(fake_store.layout, keep)
    assert pins.pinned(fake_store.layout) == {keep}
    limits.enforce(fake_store.layout, 1, None)
    assert fake_store.entry_keys() == {keep}
    pins.unpin(fake_store.layout, keep)
    pins.unpin(fake_store.layout, keep)
    limits.enforce(fake_store.layout, 1, None)
    assert fake_store.entry_keys() == set()


def test_nothing_is_evicted_while_it_is_not_known_what_is_pinned(fake_store, monkeypatch):
    pins.pin(fake_store.layout, fake_store.add("relu"))
    listdir = os.listdir

    def stale(path="."):
        if str(path).endswith(pins.AREA):
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", stale)
    assert limits.enforce(fake_store.layout, 1, None) == 0
    assert len(fake_store.entry_keys()) == 1


def test_a_pinned_entry_stays_whatever_its_age(fake_store):
    keep = fake_store.add("relu")
    pins.pin(fake_store.layout, keep)
    removed = gc.remove(fake_store.layout, gc.over_limit(fake_store.layout, time.time() + 400 * DAY, max_age=DAY))
    assert fake_store.entry_keys() == {keep} and not [eviction for eviction in removed if eviction.kind == "entry"]


def test_an_entry_that_was_just_published_stays(fake_store, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 5.0)
    key = fake_store.add("relu")
    assert limits.enforce(fake_store.layout, 1, None) == 0
    assert fake_store.entry_keys() == {key}


def test_ages_are_checked_once_a_day(fake_store, monkeypatch):
    max_ages = []
    real = gc.over_limit
    monkeypatch.setattr(gc, "over_limit", lambda *arguments: max_ages.append(arguments[3]) or real(*arguments))
    for _time in range(3):
        limits.enforce(fake_store.layout, None, 180 * DAY)
    assert max_ages == [180 * DAY]
    os.utime(fake_store.layout.path(limits.SWEPT), (time.time() - DAY - 1,) * 2)
    limits.enforce(fake_store.layout, None, 180 * DAY)
    assert max_ages == [180 * DAY] * 2


def test_ages_in_a_new_store_are_checked_a_day_after_it_was_made(tmp_path, monkeypatch):
    layout, max_ages = Layout(str(tmp_path / "store")), []
    monkeypatch.setattr(gc, "over_limit", lambda *arguments: max_ages.append(arguments[3]) or [])
    current_store.prepare(layout.root, frozenset({os.geteuid()}))
    limits.enforce(layout, None, 180 * DAY)
    assert max_ages == []
    os.utime(layout.path(limits.SWEPT), (time.time() - DAY - 1,) * 2)
    limits.enforce(layout, None, 180 * DAY)
    assert max_ages == [180 * DAY]


def test_over_the_size_limit_between_two_age_checks_entries_are_evicted_by_size_alone(fake_store, monkeypatch):
    limits.enforce(fake_store.layout, None, DAY)
    keys = {fake_store.add("relu"), fake_store.add("adam")}
    monkeypatch.setattr(time, "time", lambda real=time.time: real() + 2 * 3600)
    limits.enforce(fake_store.layout, total_size(fake_store) - 1, 1.0)
    assert len(fake_store.entry_keys() & keys) == 1


def test_an_eviction_is_an_event_with_the_reason(fake_store, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_LOG", str(tmp_path / "log"))
    key = fake_store.add("relu")
    limits.enforce(fake_store.layout, 1, None)
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    (evicted,) = [event for event in events if event["event"] == "evict" and event["kind"] == "entry"]
    assert evicted["op"] == "relu" and evicted["path"].endswith(key) and evicted["bytes"] > 1000
    assert evicted["reasons"] == ["the least recently used, and the store is larger than the limit"]


@pytest.mark.parametrize("error", [CacheDirError("x", "read-only", "y"), PermissionError(13, "no")])
def test_a_failure_to_evict_raises_nothing(fake_store, monkeypatch, error):
    fake_store.add("relu")

    def fail(*_arguments):
        raise error

    monkeypatch.setattr(gc, "over_limit", fail)
    assert limits.enforce(fake_store.layout, 1, None) == 0


def test_ages_are_not_checked_if_the_check_cannot_be_noted(fake_store, monkeypatch):
    os.unlink(fake_store.layout.path(limits.SWEPT))
    os.mkdir(fake_store.layout.path(limits.SWEPT))
    os.utime(fake_store.layout.path(limits.SWEPT), (1, 1))
    monkeypatch.setattr(gc, "over_limit", lambda *_arguments: pytest.fail("it would be repeated at every build"))
    assert limits.enforce(fake_store.layout, None, 1.0) == 0


# -- settings ----------------------------------------------------------------------------------------------------------


def test_limits_have_defaults_and_zero_means_none(monkeypatch):
    assert settings.cache_max_size() == 10 << 30 and settings.cache_max_age() == 180 * DAY
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", "0")
    monkeypatch.setenv("OPFORGE_CACHE_MAX_AGE", "0")
    assert settings.cache_max_size() is None and settings.cache_max_age() is None
    monkeypatch.setenv("OPFORGE_CACHE_MAX_SIZE", " 1.5 GiB ")
    monkeypatch.setenv("OPFORGE_CACHE_MAX_AGE", "12h")
    assert settings.cache_max_size() == 3 << 29 and settings.cache_max_age() == DAY / 2


@pytest.mark.parametrize(
    ("name", "read", "value", "expected"),
    [
        (
            "OPFORGE_CACHE_MAX_SIZE",
            settings.cache_max_size,
            value,
            "a number with B, KiB, MB or the like, such as 2GiB",
        )
        for value in ("ten", "-1", "1 gallon", "1e9", "1.5.2G")
    ]
    + [
        ("OPFORGE_CACHE_MAX_AGE", settings.cache_max_age, value, "a number with s, min, h, d or w, such as 30d")
        for value in ("old", "-1d", "30y", "nan", "30")
    ],
)
def test_a_limit_that_cannot_be_read_says_what_was_expected(monkeypatch, name, read, value, expected):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match="^" + re.escape(f"{name}={value!r} cannot be used: expected {expected}.")):
        read()
