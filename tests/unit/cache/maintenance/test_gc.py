"""Keeping a store sound and bounded: what is damaged is set aside, what is least used goes, what is in use stays."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time

import pytest
from support.store.fake_store import ME, MadeUpStore

from opforge.cache import staging
from opforge.cache.filesystem import lock
from opforge.cache.maintenance import gc as upkeep
from opforge.cache.maintenance import verify
from opforge.errors import CacheDirError


@pytest.fixture
def made(tmp_path):
    return MadeUpStore(tmp_path / "store", tmp_path / "src")


def later(seconds=3600.0):
    return time.time() + seconds


def gc(made, **options):
    options.setdefault("now", later())
    return upkeep.remove(made.layout, upkeep.over_limit(made.layout, **options))


# -- verify ------------------------------------------------------------------------------------------------------------


def test_sound_entries_pass(made):
    made.add("relu"), made.add("adam")
    heard = []
    checked = verify.verify(made.layout, ME, lambda done, total: heard.append((done, total)))
    assert sorted(one.op for one in checked) == ["adam", "relu"] and not any(one.problem for one in checked)
    assert heard == [(1, 2), (2, 2)]


def test_a_damaged_library_is_set_aside(made, caplog):
    bad, good = made.add("relu"), made.add("adam")
    made.spoil(bad)
    problems = {one.op: one.problem for one in verify.verify(made.layout, ME)}
    assert problems == {"relu": "the library's digest differs from its manifest's", "adam": ""}
    assert made.held() == {good}
    assert len(os.listdir(made.layout.path("quarantine"))) == 1
    assert "It was set aside in" in caplog.text


def test_an_entry_under_a_wrong_key_is_set_aside(made):
    result = made.add()
    os.rename(made.layout.entry(result), made.layout.entry("f" * 32))
    (checked,) = verify.verify(made.layout, ME)
    assert checked.problem == "its manifest speaks of another entry" and made.held() == set()


@pytest.mark.parametrize(
    ("content", "problem"),
    [("{", "its manifest cannot be read"), ('{"binary": {"op": "relu"}}', "its manifest is incomplete")],
)
def test_an_entry_without_a_whole_manifest_is_set_aside(made, content, problem):
    result = made.add()
    with open(os.path.join(made.layout.entry(result), "manifest.json"), "w") as file:
        file.write(content)
    (checked,) = verify.verify(made.layout, ME)
    assert checked.problem == problem and made.held() == set()


def test_an_entry_that_another_process_removes_meanwhile_is_no_damage(made, monkeypatch):
    result = made.add()

    def removed(entry, owners, full):
        os.rename(made.layout.entry(result), made.layout.path("staging", "taken"))
        return "the library cannot be opened (No such file or directory)"

    monkeypatch.setattr(verify, "integrity_problem", removed)
    assert verify.verify(made.layout, ME) == []


# -- limits ------------------------------------------------------------------------------------------------------------


def test_without_limits_no_entry_goes(made):
    made.add()
    assert upkeep.over_limit(made.layout, later(1e9)) == []


def test_an_entry_that_was_just_published_stays(made):
    result = made.add()
    assert gc(made, now=time.time(), max_size=0, max_age=0) == []
    assert made.held() == {result}


def test_an_entry_that_was_used_just_now_stays(made):
    result = made.add()
    made.use(result, later() - 1)
    assert gc(made, max_size=0) == [] and made.held() == {result}


def test_the_least_recently_used_goes_first(made):
    oldest, middle, newest = (made.add(op, size=10_000) for op in ("a", "b", "c"))
    made.use(middle, later(900))
    made.use(newest, later(1000))
    removed = gc(made, max_size=25_000)
    assert [one.op for one in removed if one.kind == "entry"] == ["a"]
    assert made.held() == {middle, newest} and oldest not in made.held()


def test_objects_count_and_go_before_entries(made):
    result = made.add(size=10_000)
    os.makedirs(made.layout.path("objects", "unit"))
    with open(made.layout.path("objects", "unit", "a.o"), "w") as file:
        file.write("x" * 10_000)
    assert [one.kind for one in gc(made, max_size=15_000)] == ["object"]
    assert made.held() == {result} and gc(made, max_size=15_000) == []


def test_what_was_not_used_for_long_goes(made):
    old, used = made.add("old"), made.add("used")
    made.use(used, later(3000))
    removed = gc(made, max_age=1800)
    assert made.held() == {used} and old not in made.held()
    assert removed[0].reason == "not used for longer than the age limit"


def test_tickets_and_descriptions_go_with_their_entry(made):
    made.add("relu")
    kept = made.add("adam")
    made.use(kept, later())
    kinds = sorted(one.kind for one in gc(made, max_size=0))
    assert kinds == ["description", "entry", "ticket"]
    assert [name.partition("-")[0] for name in made.files("plans")] == [kept]
    assert made.files("descriptions") == [kept]
    for area in ("plans", "descriptions"):
        assert all(os.listdir(one.path) for one in os.scandir(made.layout.path(area))), "no empty folder stays"
    assert len(os.listdir(made.layout.path("plans"))) == 1


def test_an_evicted_entry_is_a_miss_and_can_be_kept_again(made):
    result = made.add()
    gc(made, max_size=0)
    assert made.held() == set() and os.listdir(made.layout.path("staging")) == []
    assert made.add() == result


# -- garbage ---------------------------------------------------------------------------------------------------------


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_dead_builder_left_goes_and_a_living_one_keeps_its_folder(made, monkeypatch):
    mine = staging.new_folder(made.layout, "plan")
    pid = dead_process()
    monkeypatch.setattr(os, "getpid", lambda: pid)
    theirs = staging.new_folder(made.layout, "plan")
    monkeypatch.undo()
    assert [one.path for one in gc(made)] == [theirs]
    assert os.path.isdir(mine) and not os.path.exists(theirs)


@pytest.mark.parametrize("area", ["logs", "failures", "objects", "quarantine", "sources"])
def test_what_is_old_goes_and_what_is_new_stays(made, area):
    os.makedirs(made.layout.path(area, "one"))
    with open(made.layout.path(area, "one", "file"), "w") as file:
        file.write("12345")
    assert gc(made, now=time.time()) == []
    (gone,) = gc(made, now=later(31 * 86400))
    assert gone.size == 5 and gone.reason.startswith("older than") and not os.listdir(made.layout.path(area))


def test_a_lock_that_is_held_stays(made):
    path = made.layout.path("locks", "plan")
    with lock.acquire(path, "relu", None):
        gc(made, now=later(8 * 86400))
        assert os.path.exists(path)
    with open(path, "a"):
        pass
    gc(made, now=later(8 * 86400))
    assert not os.path.exists(path)


def test_a_dry_run_changes_nothing(made):
    result = made.add()
    planned = upkeep.over_limit(made.layout, later(), max_size=0)
    assert [one.kind for one in planned] == ["entry", "ticket", "description"] and made.held() == {result}


# -- clear -------------------------------------------------------------------------------------------------------------


def test_clear_takes_all_but_builds_in_progress(made):
    made.add("relu"), made.add("adam")
    mine = staging.new_folder(made.layout, "plan")
    for area in ("failures", "logs", "toolchains"):
        with open(made.layout.path(area, "one"), "w"):
            pass
    upkeep.remove(made.layout, upkeep.everything(made.layout))
    assert made.held() == set() and os.path.isdir(mine)
    assert not any(made.files(area) for area in ("plans", "descriptions", "failures", "logs", "toolchains"))


def test_clear_of_one_op_leaves_the_others(made):
    gone = made.add("relu")
    kept = made.add("adam")
    upkeep.remove(made.layout, upkeep.everything(made.layout, {gone}))
    assert made.held() == {kept} and len(made.files("plans")) == len(made.files("descriptions")) == 1


# -- beside others -----------------------------------------------------------------------------------------------------


def test_what_another_process_removed_first_is_not_counted(made):
    made.add()
    planned = upkeep.over_limit(made.layout, later(), max_size=0)
    assert upkeep.remove(made.layout, planned) == planned
    assert upkeep.remove(made.layout, planned) == []


def test_a_read_only_store_is_refused_with_its_reason(made, monkeypatch):
    made.add()

    def refuse(*_arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(
        CacheDirError, match=r"cannot be used: it cannot be changed \(Read-only file system\)\. .* owner"
    ):
        gc(made, max_size=0)


def test_what_cannot_be_removed_keeps_nothing_else(made, monkeypatch):
    theirs = made.add("adam")
    made.add("relu")
    made.close(monkeypatch, theirs)
    with pytest.raises(CacheDirError, match=rf"Permission denied\)\. {made.layout.entry(theirs)} could not be removed"):
        gc(made, max_size=0)
    assert made.held() == {theirs}


def test_a_store_that_has_lost_its_empty_folders_can_be_bounded(made):
    made.add()
    os.rmdir(made.layout.path("staging"))  # as a copy that leaves them out
    assert [one.op for one in gc(made, max_size=0) if one.kind == "entry"] == ["relu"]


def test_entries_that_came_with_an_image_can_be_evicted_and_set_aside(made, monkeypatch):
    bad = made.add("relu")
    made.add("adam")
    made.spoil(bad)
    made.bake(monkeypatch)
    assert [one.op for one in verify.verify(made.layout, ME) if one.quarantined] == ["relu"]
    assert len(os.listdir(made.layout.path("quarantine"))) == 1
    assert [one.op for one in gc(made, max_size=0) if one.kind == "entry"] == ["adam"]
    assert made.held() == set() and os.listdir(made.layout.path("staging")) == []


def test_an_entry_of_the_future_is_no_young_one(made):
    result = made.add()
    made.use(result, later(3 * 86400))  # the clock was wrong when it was used
    assert gc(made, max_size=0)[0].op == "relu" and made.held() == set()


def test_gc_beside_builders_loses_nothing_and_raises_nothing(made, monkeypatch):
    monkeypatch.setattr(upkeep, "GRACE_SECONDS", 600.0)  # all that is built here is young, however long it takes
    problems, stop = [], threading.Event()

    def collect():
        while not stop.is_set():
            try:
                gc(made, now=time.time(), max_size=0, max_age=0)
                verify.verify(made.layout, ME)
            except Exception as error:
                problems.append(error)

    threads = [threading.Thread(target=collect) for _one in range(2)]
    for thread in threads:
        thread.start()
    results = {made.add(f"op{number % 5}", text=f"int a{number};") for number in range(40)}
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == [] and made.held() == results
