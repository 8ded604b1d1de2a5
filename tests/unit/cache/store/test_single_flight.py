"""Builds of one plan by several processes: one builds, the others use its entry or raise its error."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest
from support import child_processes, polling
from support.store.fake_op import LIBRARY, PLAN

from opforge.cache import admit
from opforge.cache.filesystem import lock
from opforge.cache.records import failures
from opforge.cache.records.entry import Stamped
from opforge.cache.single_flight import SharedFailure
from opforge.cache.store import Match
from opforge.errors import CacheDirError, CompileError

ATTRIBUTES = {"message": "a.cpp:1: error", "op": "relu", "log": "/log", "step": "", "command": [], "diagnostics": []}


def fail(_folder):
    raise CompileError("a.cpp:1: error", "relu", "/log")


def test_nothing_is_left_in_staging_after_a_build(fake_op):
    fake_op.build()
    assert fake_op.staging_folders() == []


def test_a_failed_build_leaves_nothing_but_its_error(fake_op):
    with pytest.raises(CompileError):
        fake_op.build(execute=fail)
    assert fake_op.staging_folders() == []
    failure = failures.after(fake_op.store.layout, PLAN, "", "s")
    assert failure == failures.Failure("compile", ATTRIBUTES, "s")
    fake_op.build()
    assert failures.after(fake_op.store.layout, PLAN, "", "s") is None


def test_a_waiter_raises_the_builders_failure(fake_op, in_thread, monkeypatch, warnings_of_the_cache):
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.0)
    entered, go_on = threading.Event(), threading.Event()

    def fail_later(folder):
        entered.set()
        assert go_on.wait(20)
        fail(folder)

    builder = in_thread(fake_op.build, execute=fail_later)
    assert entered.wait(20)
    waiter = in_thread(fake_op.build)
    polling.wait_for(lambda: any(text.startswith("a: waiting for") for text in warnings_of_the_cache()))
    go_on.set()
    assert isinstance(builder.exception(20), CompileError)
    shared = waiter.exception(20)
    assert isinstance(shared, SharedFailure)
    assert shared.failure == ("compile", ATTRIBUTES, "s") and str(shared) == "a.cpp:1: error"
    assert fake_op.builds == 0


BUILD_AND_FAIL = """
import os, pathlib, sys, time
real = time.time_ns
time.time_ns = lambda: real() + int(os.environ["SKEW"])
from support.store.fake_op import FakeOp
from opforge.errors import CompileError
op = FakeOp(pathlib.Path(os.environ["FOLDER"]))
def fail(folder):
    print("building", flush=True)
    sys.stdin.readline()
    raise CompileError("a.cpp:1: error", "relu", "/log")
try:
    op.build(execute=fail)
except CompileError:
    print("failed")
"""


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_waiter_raises_the_failure_of_a_builder_with_another_clock(
    fake_op, in_thread, monkeypatch, warnings_of_the_cache, hours
):
    """The builder is another machine, on whose clock the build failed before this process began to wait."""
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.0)
    (fake_op.folder / "src" / "a.cpp").unlink()
    os.rmdir(fake_op.folder / "src")  # the other process makes it
    env = {"SKEW": str(hours * 3600 * 10**9), "FOLDER": str(fake_op.folder)}
    builder = child_processes.start_python(BUILD_AND_FAIL, env=env, stdin=subprocess.PIPE)
    assert builder.stdout.readline() == "building\n"
    waiter = in_thread(fake_op.build)
    polling.wait_for(lambda: any(text.startswith("a: waiting for") for text in warnings_of_the_cache()))
    assert builder.communicate("\n")[0] == "failed\n"
    shared = waiter.exception(20)
    assert isinstance(shared, SharedFailure) and shared.failure == ("compile", ATTRIBUTES, "s")
    assert fake_op.builds == 0


def test_an_earlier_failure_is_not_raised_to_a_waiter(fake_op, in_thread, monkeypatch, warnings_of_the_cache):
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.0)
    with pytest.raises(CompileError):
        fake_op.build(execute=fail)
    with lock.acquire(fake_op.store.layout.path("locks", PLAN), "a", None):
        waiter = in_thread(fake_op.build)
        polling.wait_for(lambda: any(text.startswith("a: waiting for") for text in warnings_of_the_cache()))
    assert waiter.result(20).origin == "built"


def test_a_waiter_waits_on_if_only_another_state_of_the_sources_was_published(
    fake_op, monkeypatch, in_thread, warnings_of_the_cache
):
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.0)
    looked = []
    with lock.acquire(fake_op.store.layout.path("locks", PLAN), "a", None):
        waiter = in_thread(fake_op.build, look_again=lambda: looked.append(1))
        polling.wait_for(lambda: len(warnings_of_the_cache()) >= 1)
        os.makedirs(fake_op.store.layout.plan(PLAN))
        polling.wait_for(lambda: len(warnings_of_the_cache()) >= 2)  # of a second wait
        assert len(looked) == 1 and fake_op.builds == 0
    assert waiter.result(20).origin == "built" and len(looked) == 2


def test_an_entry_that_another_process_published_during_the_wait_is_used(fake_op):
    first = Match(fake_op.build(), Stamped((), ()))
    assert fake_op.build(look_again=lambda: first) is first.entry
    assert fake_op.builds == 1


def test_the_first_publisher_wins(fake_op):
    first = fake_op.build()
    inode = os.stat(first.library).st_ino
    second = fake_op.build()
    assert second.origin == "cache" and second.key == first.key
    assert os.stat(second.library).st_ino == inode


def test_a_disk_that_returns_other_bytes_is_an_error(fake_op, monkeypatch, warnings_of_the_cache):
    monkeypatch.setattr(admit, "integrity_problem", lambda *_arguments, **_options: "the digest differs")
    with pytest.raises(
        CacheDirError, match=r"cannot be read back \(the digest differs\). Check the disk, or set OPFORGE_CACHE"
    ):
        fake_op.build()
    assert fake_op.staging_folders() == []
    assert warnings_of_the_cache()


def test_a_description_folder_that_is_evicted_meanwhile_is_made_again(fake_op, monkeypatch):
    real, folders = admit.make_folder, []

    def make_and_evict(path):
        real(path)
        if "descriptions" in path and not folders:
            folders.append(path)
            os.rmdir(path)

    monkeypatch.setattr(admit, "make_folder", make_and_evict)
    entry = fake_op.build()
    assert os.listdir(folders[0]) == [entry.key]


def test_another_library_of_the_same_inputs_takes_the_place_of_the_first(fake_op):
    """A build that is forced may give other bytes. The path of a library never gets other bytes."""
    first = fake_op.build()
    fake_op.library = b"another library"
    second = fake_op.build()
    assert second.record["key"] == first.record["key"] and second.library != first.library
    with open(first.library, "rb") as file:
        assert file.read() == LIBRARY, "a process may have it open"
    assert fake_op.get().library == second.library
    assert [os.path.basename(path) for path in fake_op.pointers()] == [second.key]


def test_a_result_whose_library_is_not_as_recorded_is_refused(fake_op):
    def execute(folder):
        result = fake_op.execute(folder)
        return result._replace(record={**result.record, "sha256": "0" * 64})

    with pytest.raises(ValueError, match="digest differs"):
        fake_op.build(execute=execute)
    assert not os.listdir(fake_op.store.layout.path("entries")) and fake_op.staging_folders() == []
