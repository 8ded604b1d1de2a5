"""What the builders of one plan leave for each other: staging folders, failures, the lock and its owner."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import child_processes, polling, text_files
from support.store.fake_store import World

from opforge.cache import staging
from opforge.cache.filesystem import lock
from opforge.cache.filesystem.files import read_json
from opforge.cache.publish import SharedFailure
from opforge.cache.records import failures
from opforge.errors import CompileError, LockTimeoutError


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def failing(_folder):
    raise CompileError("a.cpp:1: error", "relu", "/log")


TOLD = {"message": "a.cpp:1: error", "op": "relu", "log": "/log", "step": "", "command": [], "diagnostics": []}


def test_a_failed_build_leaves_nothing_but_its_error(world):
    with pytest.raises(CompileError):
        world.build(execute=failing)
    assert world.staged() == []
    left = failures.since(world.store.layout, "plan", 0, "s")
    assert left == failures.Failure("compile", TOLD, "s")
    world.build()
    assert failures.since(world.store.layout, "plan", 0, "s") is None


def test_a_failure_is_for_those_who_were_waiting_and_meant_the_same_sources(world):
    place = world.store.layout
    failures.note(place, "plan", failures.Failure("compile", {"message": "text"}, "state"))
    now = read_json(place.path("failures", "plan.json"))["at"]
    assert failures.since(place, "plan", now, "state").attributes == {"message": "text"}
    assert failures.since(place, "plan", now + 1, "state") is None
    assert failures.since(place, "plan", now, "another state") is None
    for damaged in ('{"at": "x"}', '{"at": 1, "inputs": "state", "kind": "compile", "told": "text"}'):
        text_files.write(place.path("failures"), "plan.json", damaged)
        assert failures.since(place, "plan", 0, "state") is None


@pytest.fixture
def beside():
    """Runs functions beside the test."""
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit


def turn_of(path, timeout, *arguments, **options):
    """The turn that one gets at a lock."""
    with lock.acquire(path, "relu", timeout, *arguments, **options) as turn:
        return turn


def test_a_waiter_gets_the_builders_failure(world, beside, monkeypatch, warnings_of_the_cache):
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.0)
    entered, go_on = threading.Event(), threading.Event()

    def slow_failing(folder):
        entered.set()
        assert go_on.wait(20)
        failing(folder)

    first = beside(world.build, execute=slow_failing)
    assert entered.wait(20)
    second = beside(world.build)
    polling.wait_for(lambda: any(one.startswith("a: waiting for") for one in warnings_of_the_cache()))
    go_on.set()
    assert isinstance(first.exception(20), CompileError)
    shared = second.exception(20)
    assert isinstance(shared, SharedFailure)
    assert shared.failure == ("compile", TOLD, "s") and str(shared) == "a.cpp:1: error"
    assert world.built == 0


def test_what_dead_builders_of_this_host_left_is_swept(world, monkeypatch):
    dead = child_processes.start_python("pass")
    dead.communicate()
    for host in ("box", "box.site.example"):
        monkeypatch.setattr("os.uname", lambda host=host: types.SimpleNamespace(nodename=host))
        mine = staging.new_folder(world.store.layout, "plan" * 8)
        monkeypatch.setattr("os.getpid", lambda: dead.pid)
        theirs = staging.new_folder(world.store.layout, "plan" * 8)
        monkeypatch.undo()
        monkeypatch.setattr("os.uname", lambda host=host: types.SimpleNamespace(nodename=host))
        assert staging.sweep(world.store.layout) == 1
        assert os.path.isdir(mine) and not os.path.exists(theirs)
        os.rmdir(mine)


def test_what_a_dead_builder_left_is_swept_though_another_process_has_its_id(world):
    mine = staging.new_folder(world.store.layout, "plan" * 8)
    theirs = mine.replace(f".{os.getpid()}-", f".{os.getpid()}-9")  # it had the id from another moment on
    os.mkdir(theirs)
    assert staging.sweep(world.store.layout) == 1
    assert os.path.isdir(mine) and not os.path.exists(theirs)


def test_an_entry_that_cannot_be_put_in_place_is_no_entry_of_anothers(world, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    finished = staging.new_folder(world.store.layout, "plan" * 8)
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        staging.publish(world.store.layout, finished, "0" * 32)


def test_what_another_host_left_is_swept_after_a_day(world):
    place = world.store.layout.path("staging", f"plan.another-host.{os.getpid()}.00")
    os.mkdir(place)
    assert staging.sweep(world.store.layout) == 0
    os.utime(place, (0, 0))
    assert staging.sweep(world.store.layout) == 1


def test_an_owner_that_cannot_be_read_is_still_spoken_of(tmp_path):
    path = str(tmp_path / "lock")
    assert lock.owner(path) == "another process that is building it"
    for text in ("", "{}", "[]", '{"pid": 1, "host": "h", "since": "x"}'):
        text_files.write(tmp_path, "lock.owner", text)
        assert lock.owner(path) == "another process that is building it"


def test_a_wait_says_for_whom_since_when_and_how_far_and_ends_at_its_timeout(tmp_path, monkeypatch, beside, caplog):
    path = str(tmp_path / "lock")
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.1)

    with lock.acquire(path, "relu", None) as turn:
        assert turn is lock.LockResult.FREE
        lock.progress(path, "3 of 5, log /x")
        error = beside(turn_of, path, 0.5).exception(20)
    assert isinstance(error, LockTimeoutError)
    pattern = rf"process {os.getpid()} on \S+, which has been building since \d\d:\d\d:\d\d, 3 of 5, log /x"
    (heard,) = caplog.messages
    assert re.fullmatch(f"relu: waiting for {pattern}", heard)
    assert re.fullmatch(
        f"relu: waited 0.5 s for {pattern}. Raise OPFORGE_LOCK_TIMEOUT to wait longer, or end that process.", str(error)
    )


def test_a_long_wait_is_told_again_and_again(tmp_path, monkeypatch, beside, warnings_of_the_cache):
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.05)
    monkeypatch.setattr(lock, "NEXT_NOTICE", 0.05)
    path = str(tmp_path / "lock")
    with lock.acquire(path, "relu", None):
        waiting = beside(turn_of, path, None)
        polling.wait_for(lambda: len(warnings_of_the_cache()) >= 3)
    assert waiting.result(20) is lock.LockResult.WAITED and len(set(warnings_of_the_cache())) == 1


def test_a_wait_that_goes_on_is_counted_from_its_beginning(tmp_path, beside):
    path = str(tmp_path / "lock")
    with lock.acquire(path, "relu", None):
        waiting = beside(turn_of, path, 1000, since=time.monotonic() - 2000)
        assert isinstance(waiting.exception(20), LockTimeoutError)


def test_who_waits_for_a_thing_goes_on_without_the_lock_once_it_is_there(tmp_path, beside):
    path, there = str(tmp_path / "lock"), threading.Event()
    with lock.acquire(path, "relu", None):
        waiting = [beside(turn_of, path, 30, ready=there.is_set) for _ in range(3)]
        there.set()
        assert [one.result(20) for one in waiting] == [lock.LockResult.READY] * 3
        with pytest.raises(LockTimeoutError):
            turn_of(path, 0.05)  # it was held all the while


def test_who_waits_for_a_thing_that_does_not_come_gets_the_lock(tmp_path, beside):
    path = str(tmp_path / "lock")
    with lock.acquire(path, "relu", None):
        waiting = beside(turn_of, path, 30, ready=lambda: False)
        time.sleep(0.2)
    assert waiting.result(20) is lock.LockResult.WAITED


def test_where_the_file_system_has_no_locks_each_builds_for_itself(tmp_path, monkeypatch, caplog):
    """As on NFS without its lock service: a lock only saves work."""

    def refuse(*_arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    for _ in range(2):
        with (
            lock.acquire(str(tmp_path / "lock"), "relu", None) as turn,
            lock.acquire(str(tmp_path / "lock"), "relu", None),
        ):
            assert turn is lock.LockResult.FREE
    assert f"relu: no lock at {tmp_path / 'lock'} (No locks available): others may build the same" in caplog.text


def test_a_free_lock_is_taken_whatever_the_timeout(tmp_path):
    for _ in range(2):
        assert turn_of(str(tmp_path / "lock"), 0) is lock.LockResult.FREE


def test_what_came_and_answers_others_lets_nobody_build_beside_the_builder(
    world, monkeypatch, beside, warnings_of_the_cache
):
    """Another state of the sources was published under the same plan: who waits for this one waits on."""
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.0)
    looked = []
    with lock.acquire(world.store.layout.path("locks", "plan"), "a", None):
        waiting = beside(world.build, look_again=lambda: looked.append(1))
        polling.wait_for(lambda: len(warnings_of_the_cache()) >= 1)
        os.makedirs(world.store.layout.plan("plan"))
        polling.wait_for(lambda: len(warnings_of_the_cache()) >= 2)  # of a second wait
        assert len(looked) == 1 and world.built == 0
    assert waiting.result(20).origin == "built" and len(looked) == 2
