"""Limits that are kept after each build: sizes each time, ages once a day; what is pinned stays."""

from __future__ import annotations

import os
import re
import time

import pytest
from support.store.fake_store import MadeUpStore

from opforge import settings
from opforge.cache.maintenance import gc, limits, pins
from opforge.cache.records import objects, size_log
from opforge.cache.records.inputs import Inputs
from opforge.errors import CacheDirError, SettingError

DAY = 24 * 3600.0


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 0.0)
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


def ticket_times(made, result, ago):
    made.use(result, time.time() - ago)


def size_of(made):
    return size_log.count(made.layout)


def test_a_store_within_its_limits_is_left_alone(made):
    made.add("relu")
    assert limits.enforce(made.layout, 10_000_000, None) == 0
    assert len(made.held()) == 1


def test_without_limits_nothing_is_looked_at(made, monkeypatch):
    made.add("relu")
    monkeypatch.setattr(size_log, "total", lambda _layout: pytest.fail("it was"))
    assert limits.enforce(made.layout, None, None) == 0


def test_a_store_above_its_size_ends_a_tenth_below_it(made, monkeypatch):
    for number in range(6):
        made.add(f"op{number}", size=20_000)
    limit = size_of(made) // 2
    assert limits.enforce(made.layout, limit, None) > 0
    assert 0 < size_of(made) <= limit
    assert len(made.held()) == 2, "a tenth of the limit is free, and no more went than had to"
    monkeypatch.setattr(size_log, "count", lambda _layout: pytest.fail("it was walked again"))
    assert limits.enforce(made.layout, limit, None) == 0


def test_nothing_goes_because_the_running_sum_is_too_high(made):
    for number in range(3):
        made.add(f"op{number}", size=20_000)
    size_log.measure(made.layout)
    size_log.append(made.layout, 50_000)  # as a build leaves it that was counted while the store was walked
    assert limits.enforce(made.layout, size_of(made) + 1, None) == 0
    assert len(made.held()) == 3


def test_objects_count_too_and_go_first(made):
    result = made.add("relu", size=1000)
    made.layout.path("objects")
    path = os.path.join(made.roots["own"], "a.o")
    with open(path, "wb") as file:
        file.write(b"o" * 50_000)
    objects.keep(made.layout, "unit", path, Inputs(()))
    assert limits.enforce(made.layout, 20_000, None) == 1
    assert made.held() == {result} and made.files("objects") == []


def test_what_is_pinned_stays_whatever_the_limits_say(made):
    keep, other = made.add("relu"), made.add("adam")
    pins.pin(made.layout, keep)
    assert pins.pinned(made.layout) == {keep}
    limits.enforce(made.layout, 1, None)
    assert made.held() == {keep} and other not in made.held()
    pins.unpin(made.layout, keep)
    pins.unpin(made.layout, keep)
    limits.enforce(made.layout, 1, None)
    assert made.held() == set()


def test_what_is_pinned_stays_whatever_its_age(made):
    keep = made.add("relu")
    pins.pin(made.layout, keep)
    gone = gc.remove(made.layout, gc.over_limit(made.layout, time.time() + 400 * DAY, max_age=DAY))
    assert made.held() == {keep} and not [one for one in gone if one.kind == "entry"]


def test_what_was_published_or_used_just_now_stays(made, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 5.0)
    result = made.add("relu")
    assert limits.enforce(made.layout, 1, None) == 0
    assert made.held() == {result}


def test_ages_are_looked_at_once_a_day(made, monkeypatch):
    seen = []
    real = gc.over_limit
    monkeypatch.setattr(gc, "over_limit", lambda *arguments: seen.append(arguments[3]) or real(*arguments))
    for _time in range(3):
        limits.enforce(made.layout, None, 180 * DAY)
    assert seen == [180 * DAY]
    os.utime(made.layout.path(limits.SWEPT), (time.time() - DAY - 1,) * 2)
    limits.enforce(made.layout, None, 180 * DAY)
    assert seen == [180 * DAY] * 2


def test_a_size_that_is_exceeded_between_two_looks_at_the_ages_evicts_by_size_alone(made, monkeypatch):
    limits.enforce(made.layout, None, DAY)
    results = {made.add("relu"), made.add("adam")}
    monkeypatch.setattr(time, "time", lambda real=time.time: real() + 2 * 3600)
    limits.enforce(made.layout, size_of(made) - 1, 1.0)
    assert len(made.held() & results) == 1


def test_an_eviction_is_an_event_with_its_reason(made, tmp_path, monkeypatch):
    import json

    monkeypatch.setenv("OPFORGE_LOG", str(tmp_path / "log"))
    result = made.add("relu")
    limits.enforce(made.layout, 1, None)
    told = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    (evicted,) = [one for one in told if one["event"] == "evict" and one["kind"] == "entry"]
    assert evicted["op"] == "relu" and evicted["path"].endswith(result) and evicted["bytes"] > 1000
    assert evicted["reasons"] == ["the least recently used, and the store is larger than the limit"]


@pytest.mark.parametrize("error", [CacheDirError("x", "read-only", "y"), PermissionError(13, "no")])
def test_a_store_that_cannot_be_changed_fails_no_build(made, monkeypatch, error):
    made.add("relu")

    def fail(*_arguments):
        raise error

    monkeypatch.setattr(gc, "over_limit", fail)
    assert limits.enforce(made.layout, 1, None) == 0


def test_a_day_that_cannot_be_noted_looks_at_no_ages(made, monkeypatch):
    os.mkdir(made.layout.path(limits.SWEPT))
    os.utime(made.layout.path(limits.SWEPT), (1, 1))
    monkeypatch.setattr(gc, "over_limit", lambda *_arguments: pytest.fail("it would at every build"))
    assert limits.enforce(made.layout, None, 1.0) == 0


# -- what the environment asks for -------------------------------------------------------------------------------------


def test_limits_have_defaults_and_zero_lifts_them(monkeypatch):
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
        ("OPFORGE_CACHE_MAX_SIZE", settings.cache_max_size, value, "a number with B, KiB, MB or the like, such as 2GiB")
        for value in ("ten", "-1", "1 gallon", "1e9", "1.5.2G")
    ]
    + [
        ("OPFORGE_CACHE_MAX_AGE", settings.cache_max_age, value, "a number with s, min, h, d or w, such as 30d")
        for value in ("old", "-1d", "30y", "nan")
    ],
)
def test_a_limit_that_cannot_be_read_says_what_was_expected(monkeypatch, name, read, value, expected):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match="^" + re.escape(f"{name}={value!r} cannot be used: expected {expected}.")):
        read()
