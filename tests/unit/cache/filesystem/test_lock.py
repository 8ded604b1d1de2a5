"""The lock: how a wait for it ends, and what is reported of its owner."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import threading
import time

import pytest
from support import child_processes, polling, text_files

from opforge.cache.filesystem import lock
from opforge.cache.filesystem.lock import LockResult
from opforge.errors import LockTimeoutError


def result_of(path, timeout, *arguments, **options):
    """Acquires a lock and releases it; returns how the wait ended."""
    with lock.acquire(path, "relu", timeout, *arguments, **options) as result:
        return result


@pytest.fixture
def path(tmp_path):
    """The lock's file."""
    return str(tmp_path / "lock")


def test_a_free_lock_is_acquired_whatever_the_timeout(path):
    for _number in range(2):
        assert result_of(path, 0) is LockResult.FREE


def test_an_owner_that_cannot_be_read_is_still_reported(path, tmp_path):
    assert lock.owner(path) == "another process that is building it"
    for text in ("", "{}", "[]", '{"pid": 1, "host": "h", "since": "x"}'):
        text_files.write(tmp_path, "lock.owner", text)
        assert lock.owner(path) == "another process that is building it"


def test_a_wait_reports_the_owner_and_its_progress_and_ends_at_its_timeout(path, monkeypatch, in_thread, caplog):
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.1)
    with lock.acquire(path, "relu", None) as result:
        assert result is LockResult.FREE
        lock.progress(path, "3 of 5, log /x")
        error = in_thread(result_of, path, 0.5).exception(20)
    assert isinstance(error, LockTimeoutError)
    assert error.__context__ is None, "the lock's own error would be printed with it, or with an interrupt of the wait"
    owner = rf"process {os.getpid()} on \S+, which has been building since \d\d:\d\d:\d\d, 3 of 5, log /x"
    (message,) = caplog.messages
    assert re.fullmatch(f"relu: waiting for {owner}", message)
    assert re.fullmatch(
        f"relu: waited 0.5 s for {owner}. Raise OPFORGE_LOCK_TIMEOUT to wait longer, or end that process.", str(error)
    )


def test_a_long_wait_is_reported_repeatedly(path, monkeypatch, in_thread, warnings_of_the_cache):
    monkeypatch.setattr(lock, "FIRST_NOTICE", 0.05)
    monkeypatch.setattr(lock, "NEXT_NOTICE", 0.05)
    with lock.acquire(path, "relu", None):
        waiting = in_thread(result_of, path, None)
        polling.wait_for(lambda: len(warnings_of_the_cache()) >= 3)
    assert waiting.result(20) is LockResult.WAITED and len(set(warnings_of_the_cache())) == 1


def test_the_timeout_of_a_continued_wait_counts_from_its_beginning(path, in_thread):
    with lock.acquire(path, "relu", None):
        waiting = in_thread(result_of, path, 1000, since=time.monotonic() - 2000)
        assert isinstance(waiting.exception(20), LockTimeoutError)


def test_a_wait_ends_without_the_lock_once_ready_returns_true(path, in_thread):
    is_there = threading.Event()
    with lock.acquire(path, "relu", None):
        waiting = [in_thread(result_of, path, 30, ready=is_there.is_set) for _number in range(3)]
        is_there.set()
        assert [waiter.result(20) for waiter in waiting] == [LockResult.READY] * 3
        with pytest.raises(LockTimeoutError):
            result_of(path, 0.05)  # the lock was held all the while


def test_a_wait_ends_with_the_lock_if_ready_never_returns_true(path, in_thread):
    with lock.acquire(path, "relu", None):
        waiting = in_thread(result_of, path, 30, ready=lambda: False)
        time.sleep(0.2)
    assert waiting.result(20) is LockResult.WAITED


def test_on_a_file_system_without_locks_every_process_goes_on(path, monkeypatch, caplog):
    """As on NFS without its lock service: a lock only saves work."""

    def refuse(*_arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    for _number in range(2):
        with lock.acquire(path, "relu", None) as result, lock.acquire(path, "relu", None):
            assert result is LockResult.FREE
    assert f"relu: cannot lock {path} (No locks available): other processes may build the same op" in caplog.text


# -- a file system without flock ---------------------------------------------------------------------------------------

NO_FLOCK = """
#include <errno.h>
#include <stdlib.h>
#include <string.h>
int flock(int handle, int operation) { errno = ENOSYS; return -1; }
int gethostname(char *name, size_t size) { strncpy(name, getenv("HOST"), size); return 0; }
"""
HOLD = """
import os, sys
from opforge.cache.filesystem import lock
with lock.acquire(os.environ["LOCK"], "relu", 2.0) as result:
    print(result.name, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def lustre(tmp_path):
    """Returns the environment of a process on a node to whose file systems flock() is not implemented."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    text_files.write(tmp_path, "noflock.c", NO_FLOCK)
    library = str(tmp_path / "noflock.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "noflock.c")], check=True)
    return lambda host: {"LD_PRELOAD": library, "LOCK": str(tmp_path / "lock"), "HOST": host}


def test_without_flock_a_killed_owner_stops_no_other_node(lustre):
    owner = child_processes.start_python(HOLD, env=lustre("node1"), stdin=subprocess.PIPE)
    assert owner.stdout.readline() == "FREE\n"
    owner.kill()
    owner.communicate()
    other = child_processes.start_python(HOLD, env=lustre("node2"), stdin=subprocess.PIPE)
    out, err = other.communicate("\n", timeout=60)
    assert out == "FREE\n", err
    assert "cannot lock" in err and "(Function not implemented): other processes may build the same op" in err


def test_without_flock_two_nodes_build_at_once(lustre):
    owners = [
        child_processes.start_python(HOLD, env=lustre(host), stdin=subprocess.PIPE) for host in ("node1", "node2")
    ]
    assert [owner.stdout.readline() for owner in owners] == ["FREE\n"] * 2
    for owner in owners:
        owner.communicate("\n")


def test_without_flock_a_marker_that_another_opforge_left_stops_nobody(lustre, path):
    text_files.write(os.path.dirname(path), "lock", "4242\nnode3\n")
    other = child_processes.start_python(HOLD, env=lustre("node2"), stdin=subprocess.PIPE)
    assert other.communicate("\n", timeout=60)[0] == "FREE\n"


def test_a_lock_file_is_removed_unless_it_is_held(path, monkeypatch):
    with lock.acquire(path, "relu", None):
        assert not lock.remove(path)
    assert lock.remove(path) and not os.path.exists(path)
    with pytest.raises(FileNotFoundError):
        lock.remove(path)
    text_files.write(os.path.dirname(path), "lock", "")

    def refuse(*_arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert lock.remove(path) and not os.path.exists(path), "nobody can hold it"


def test_a_folder_of_locks_that_disappears_during_a_wait_ends_the_wait(tmp_path):
    folder = tmp_path / "locks"
    folder.mkdir()

    def replace_folder():
        if not folder.is_symlink():
            folder.rename(tmp_path / "moved")
            folder.symlink_to("/dev/zero")
        return False

    with lock.acquire(str(folder / "key"), "relu", None):
        assert result_of(str(folder / "key"), 20, replace_folder) is LockResult.FREE


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
def test_what_one_way_holds_the_other_waits_for(path, monkeypatch, first, second):
    """A lock is taken by filelock, or without it if nobody holds it."""
    free = lock._free
    monkeypatch.setattr(lock, "_free", lambda path: None if by_filelock else free(path))
    by_filelock = first
    with lock.acquire(path, "relu", 0) as result:
        by_filelock = second
        with pytest.raises(LockTimeoutError, match=f"process {os.getpid()} on "), lock.acquire(path, "gelu", 0.1):
            pass
    assert result is LockResult.FREE
    assert result_of(path, 0) is LockResult.FREE


FORK = """
import os, signal, sys, time, warnings
from opforge.cache.filesystem import lock
warnings.simplefilter("ignore")
with lock.acquire(os.environ["LOCK"], "relu", 0):
    child = os.fork()
    if child:
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""


def test_a_child_that_was_forked_does_not_hold_the_lock_of_its_killed_parent(path):
    with child_processes.start_python(FORK, env={"LOCK": path}) as parent:
        child = int(parent.stdout.readline())
        try:
            parent.wait(20)
            assert result_of(path, 5) in (LockResult.FREE, LockResult.WAITED)
        finally:
            os.kill(child, 9)  # it still runs


def test_a_lock_whose_file_was_removed_meanwhile_is_not_taken_to_be_held(path, monkeypatch):
    real = os.open

    def open_and_lose(name, *arguments):
        handle = real(name, *arguments)
        if name == path and os.path.exists(path):
            monkeypatch.setattr(os, "open", real)
            os.unlink(path)
        return handle

    monkeypatch.setattr(os, "open", open_and_lose)
    with lock.acquire(path, "relu", 0) as result:
        assert result is LockResult.FREE and os.path.exists(path) and lock.remove(path) is False


def test_a_free_lock_is_held_without_the_code_that_waits(path):
    code = (
        "import sys; from opforge.cache.filesystem import lock\n"
        f"with lock.acquire({path!r}, 'relu', 0): print('filelock' in sys.modules)"
    )
    assert child_processes.run_python(code) == "False\n"


def test_a_link_in_the_place_of_a_lock_is_not_followed(path, tmp_path):
    os.symlink(text_files.write(tmp_path, "other", "text"), path)
    with lock.acquire(path, "relu", 0) as result:
        assert result is LockResult.FREE and not os.path.islink(path)
