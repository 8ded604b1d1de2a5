"""The least recently used entries are evicted, what nothing needs is removed, what is in use stays."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.store import own_names
from support.store.fake_store import ME

from opforge.cache import staging
from opforge.cache.filesystem import lock
from opforge.cache.maintenance import gc, parallel, pointers, verify
from opforge.cache.records import size_log
from opforge.errors import CacheDirError


def later(seconds=3600.0):
    return time.time() + seconds


def collect(fake_store, **options):
    """Removes what `gc` would remove in an hour; returns it."""
    options.setdefault("now", later())
    return gc.remove(fake_store.layout, gc.over_limit(fake_store.layout, **options))


def evicted_ops(evictions):
    return [eviction.op for eviction in evictions if eviction.kind == "entry"]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_without_limits_no_entry_is_evicted(fake_store):
    fake_store.add()
    assert gc.over_limit(fake_store.layout, later(1e9)) == []


def test_an_entry_that_was_just_published_stays(fake_store):
    key = fake_store.add()
    assert collect(fake_store, now=time.time(), max_size=0, max_age=0) == []
    assert fake_store.entry_keys() == {key}


def test_an_entry_that_was_just_used_stays(fake_store):
    key = fake_store.add()
    fake_store.use(key, later() - 1)
    assert collect(fake_store, max_size=0) == [] and fake_store.entry_keys() == {key}


def test_the_least_recently_used_entry_is_evicted_first(fake_store):
    _oldest, middle, newest = (fake_store.add(op, size=10_000) for op in ("a", "b", "c"))
    fake_store.use(middle, later(900))
    fake_store.use(newest, later(1000))
    assert evicted_ops(collect(fake_store, max_size=25_000)) == ["a"]
    assert fake_store.entry_keys() == {middle, newest}


def test_objects_count_and_are_evicted_before_entries(fake_store):
    key = fake_store.add(size=10_000)
    folder = fake_store.layout.path("objects", own_names.EXAMPLES["objects"])
    os.makedirs(folder)
    with open(os.path.join(folder, "a.o"), "w") as file:
        file.write("x" * 10_000)
    assert [eviction.kind for eviction in collect(fake_store, max_size=15_000)] == ["object"]
    assert fake_store.entry_keys() == {key} and collect(fake_store, max_size=15_000) == []


def test_an_entry_that_was_not_used_for_long_is_evicted(fake_store):
    _old, used = fake_store.add("old"), fake_store.add("used")
    fake_store.use(used, later(3000))
    removed = collect(fake_store, max_age=1800)
    assert fake_store.entry_keys() == {used}
    assert removed[0].reason == "not used for longer than the age limit"


def test_pointers_are_removed_with_their_entry(fake_store):
    fake_store.add("relu")
    kept = fake_store.add("adam")
    fake_store.use(kept, later())
    assert sorted(eviction.kind for eviction in collect(fake_store, max_size=0)) == [
        "description",
        "entry",
        "pointer",
    ]
    assert fake_store.files("plans") == [kept]
    assert fake_store.files("descriptions") == [kept]
    for area in ("plans", "descriptions"):
        folders = os.scandir(fake_store.layout.path(area))
        assert all(os.listdir(folder.path) for folder in folders), "no empty folder stays"
    assert len(os.listdir(fake_store.layout.path("plans"))) == 1


def test_nothing_is_known_to_be_gone_if_the_folder_of_the_entries_is_a_link(fake_store, tmp_path):
    fake_store.add("relu")
    entries = fake_store.layout.path("entries")
    os.rename(entries, tmp_path / "bigger disk")
    os.symlink(tmp_path / "bigger disk", entries)
    assert gc.over_limit(fake_store.layout, time.time()) == []


def test_an_evicted_entry_is_gone_and_can_be_published_again(fake_store):
    key = fake_store.add()
    collect(fake_store, max_size=0)
    assert fake_store.entry_keys() == set() and os.listdir(fake_store.layout.path("staging")) == []
    assert fake_store.add() == key


def test_an_entry_that_was_used_in_the_future_can_be_evicted(fake_store):
    key = fake_store.add()
    fake_store.use(key, later(3 * 86400))  # the clock was wrong when it was used
    assert collect(fake_store, max_size=0)[0].op == "relu" and fake_store.entry_keys() == set()


def test_choosing_reads_no_record_and_names_the_op_all_the_same(fake_store, monkeypatch):
    for op in ("relu", "fused_adam", "größe"):
        fake_store.add(op)
    for key in fake_store.entry_keys():
        with open(os.path.join(fake_store.layout.entry(key), "record.json"), "w") as file:
            file.write("damaged")
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **named: opened.append(path) or real(path, *rest, **named))
    assert sorted(evicted_ops(gc.over_limit(fake_store.layout, later(), max_size=0))) == ["fused_adam", "größe", "relu"]
    assert not [path for path in opened if "entries" in str(path)]
    assert not os.path.exists(fake_store.layout.path("summaries"))


def test_an_entry_whose_folder_is_replaced_by_a_link_meanwhile_leads_nowhere(fake_store, tmp_path):
    key = fake_store.add()
    planned = gc.over_limit(fake_store.layout, later(), max_size=0)
    os.rename(fake_store.layout.entry(key), tmp_path / "moved")
    os.symlink(tmp_path / "moved", fake_store.layout.entry(key))
    gc.remove(fake_store.layout, planned)
    assert len(os.listdir(tmp_path / "moved")) == 3


# -- what nothing needs ------------------------------------------------------------------------------------------------


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_staging_folder_of_a_dead_builder_is_removed_and_a_living_ones_is_not(fake_store, monkeypatch):
    own = staging.new_folder(fake_store.layout, "plan")
    pid = dead_process()
    monkeypatch.setattr(os, "getpid", lambda: pid)
    abandoned = staging.new_folder(fake_store.layout, "plan")
    monkeypatch.undo()
    assert [eviction.path for eviction in collect(fake_store)] == [abandoned]
    assert os.path.isdir(own) and not os.path.exists(abandoned)


@pytest.mark.parametrize("area", ["logs", "failures", "objects", "quarantine", "sources"])
def test_old_contents_of_an_area_are_removed_and_new_ones_are_not(fake_store, area):
    folder = fake_store.layout.path(area, own_names.EXAMPLES[area])
    os.makedirs(folder)
    with open(os.path.join(folder, "file"), "w") as file:
        file.write("12345")
    assert collect(fake_store, now=time.time()) == []
    (removed,) = collect(fake_store, now=later(31 * 86400))
    assert removed.size == 5 and removed.reason.startswith("older than")
    assert not os.listdir(fake_store.layout.path(area))


@pytest.mark.parametrize("choose", ["rm --all", "gc"])
def test_whatever_is_set_aside_is_removed_later(fake_store, choose):
    """An entry, a page of a JIT, and a tuning result: each has another form of name."""
    names = (own_names.ENTRY, own_names.EXAMPLES["jit"], "cuda-sm_90 sm_100-8.json")
    for name in names:
        path = fake_store.layout.path("objects", name)
        os.makedirs(path) if name != names[-1] else open(path, "w").close()
        assert staging.set_aside(fake_store.layout, path, "it is damaged")
    if choose == "gc":
        assert collect(fake_store) == [] and len(collect(fake_store, now=later(8 * 86400))) == len(names)
    else:
        gc.remove(fake_store.layout, gc.everything(fake_store.layout))
    assert os.listdir(fake_store.layout.path("quarantine")) == []


def test_a_lock_that_is_held_stays(fake_store):
    path = fake_store.layout.path("locks", own_names.EXAMPLES["locks"])
    with lock.acquire(path, "relu", None):
        collect(fake_store, now=later(8 * 86400))
        assert os.path.exists(path)
    with open(path, "a"):
        pass
    collect(fake_store, now=later(8 * 86400))
    assert not os.path.exists(path)


def test_choosing_what_is_removed_changes_nothing(fake_store):
    key = fake_store.add()
    planned = gc.over_limit(fake_store.layout, later(), max_size=0)
    assert [eviction.kind for eviction in planned] == ["entry", "pointer", "description"]
    assert fake_store.entry_keys() == {key}


# -- clear -------------------------------------------------------------------------------------------------------------


def test_clear_removes_everything_but_builds_in_progress(fake_store):
    fake_store.add("relu"), fake_store.add("adam")
    own = staging.new_folder(fake_store.layout, "plan")
    for area in ("failures", "logs", "toolchains"):
        with open(fake_store.layout.path(area, own_names.EXAMPLES[area]), "w"):
            pass
    gc.remove(fake_store.layout, gc.everything(fake_store.layout))
    assert fake_store.entry_keys() == set() and os.path.isdir(own)
    areas = ("plans", "descriptions", "failures", "logs", "toolchains")
    assert not any(fake_store.files(area) for area in areas)


def test_clear_of_one_entry_leaves_the_others(fake_store):
    cleared, kept = fake_store.add("relu"), fake_store.add("adam")
    gc.remove(fake_store.layout, gc.everything(fake_store.layout, {cleared}))
    assert fake_store.entry_keys() == {kept}
    assert len(fake_store.files("plans")) == len(fake_store.files("descriptions")) == 1


# -- beside other processes --------------------------------------------------------------------------------------------


def test_what_another_process_removed_first_is_not_counted(fake_store):
    fake_store.add()
    planned = gc.over_limit(fake_store.layout, later(), max_size=0)
    assert gc.remove(fake_store.layout, planned) == planned
    assert gc.remove(fake_store.layout, planned) == []


def test_a_read_only_store_is_refused_with_its_reason(fake_store, monkeypatch):
    fake_store.add()

    def refuse(*_arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(
        CacheDirError,
        match=r"cannot be used: it cannot be changed \(Read-only file system\)\. .* run this where it can be",
    ):
        collect(fake_store, max_size=0)


def test_an_entry_that_cannot_be_removed_keeps_no_other(fake_store, monkeypatch):
    foreign = fake_store.add("adam")
    fake_store.add("relu")
    fake_store.deny_access(monkeypatch, foreign)
    folder = fake_store.layout.entry(foreign)
    with pytest.raises(CacheDirError, match=rf"Permission denied\)\. {folder} could not be removed"):
        collect(fake_store, max_size=0)
    assert fake_store.entry_keys() == {foreign}


def test_a_store_that_has_lost_its_empty_folders_can_be_collected(fake_store):
    fake_store.add()
    os.rmdir(fake_store.layout.path("staging"))  # as after a copy that leaves empty folders out
    assert evicted_ops(collect(fake_store, max_size=0)) == ["relu"]


def test_an_entry_in_a_lower_layer_of_an_image_can_be_evicted(fake_store, monkeypatch):
    fake_store.add("adam")
    fake_store.put_in_image_layer(monkeypatch)
    assert evicted_ops(collect(fake_store, max_size=0)) == ["adam"]
    assert fake_store.entry_keys() == set() and os.listdir(fake_store.layout.path("staging")) == []


def test_collecting_and_verifying_beside_builders_loses_nothing_and_raises_nothing(fake_store, monkeypatch):
    monkeypatch.setattr(gc, "GRACE_SECONDS", 600.0)  # longer than this test takes
    errors, stop = [], threading.Event()

    def maintain():
        while not stop.is_set():
            try:
                collect(fake_store, now=time.time(), max_size=0, max_age=0)
                verify.verify(fake_store.layout, ME)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=maintain) for _number in range(2)]
    for thread in threads:
        thread.start()
    keys = {fake_store.add(f"op{number % 5}", text=f"int a{number};") for number in range(40)}
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == [] and fake_store.entry_keys() == keys


def test_many_are_removed_by_several_threads_and_each_is_reported_once(fake_store, monkeypatch):
    monkeypatch.setattr(parallel, "CHUNK", 2)
    monkeypatch.setattr(parallel, "SLOW_SECONDS", -1.0)
    for number in range(40):
        fake_store.add(f"op{number}")
    planned = gc.over_limit(fake_store.layout, later(), max_size=0)
    others = [gc.over_limit(fake_store.layout, later(), max_size=0) for _process in range(3)]
    with ThreadPoolExecutor(4) as pool:
        removed = [*pool.map(lambda evictions: gc.remove(fake_store.layout, evictions), [planned, *others])]
    reported = sorted(eviction.path for evictions in removed for eviction in evictions)
    assert reported == sorted(eviction.path for eviction in planned)
    assert fake_store.entry_keys() == set() and pointers.read(fake_store.layout).files == []
    assert os.listdir(fake_store.layout.path("staging")) == [] and size_log.total(fake_store.layout) == 0
