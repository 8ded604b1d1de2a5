"""The locks of objects in a folder: their owners are killed or stopped, or keep them for too long."""

from __future__ import annotations

import signal
import time

import pytest
from support import child_processes
from support.polling import wait_for

from opforge.errors import StoreError
from opforge.remote.stores.folder import lock, tree
from opforge.remote.stores.folder.store import FolderStore

HOLD = """
import os, time
from opforge.remote.stores.folder import lock, tree
root = os.environ["ROOT"]
with tree.folder(root, ("v1",)) as parent, lock.hold(root, parent, "x", float(os.environ["VOID"])) as held:
    print("held", flush=True)
    time.sleep(float(os.environ["SECONDS"]))
"""
SLOW_REPLACE = """
import os, signal
from opforge.remote.stores.folder import lock
from opforge.remote.stores.folder.store import FolderStore
store = FolderStore("file://test", os.environ["ROOT"], void_seconds=0.4)
stored = store.get("v1/x", 100)
is_held, stops = lock.FolderLock.is_held, [True]
def stop_first(held):
    if stops.pop() if stops else False:
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    return is_held(held)
lock.FolderLock.is_held = stop_first
print(store.put_if_unchanged("v1/x", b"of the stopped process", stored.version), flush=True)
"""


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def store(root):
    return FolderStore(root.as_uri(), str(root), void_seconds=0.5)


def files(root):
    """Returns all files below a folder, also those that are no objects."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def start(code, root, **env):
    return child_processes.start_python(
        code, env={"ROOT": str(root), **{name: str(value) for name, value in env.items()}}
    )


def test_the_lock_of_a_process_that_was_killed_is_void(root, store):
    store.put_if_absent("v1/x", b"1")
    version = store.get("v1/x", 9).version
    process = start(HOLD, root, VOID=0.5, SECONDS=60)
    assert process.stdout.readline() == "held\n"
    process.kill()
    process.communicate()
    assert (root / "v1/x.lock").exists()
    began = time.monotonic()
    assert store.put_if_unchanged("v1/x", b"2", version)
    assert 0.5 <= time.monotonic() - began < 5
    assert files(root) == ["v1/x"]


@pytest.mark.parametrize("target", ["nowhere", "x"])
def test_a_link_in_the_place_of_a_lock_is_void_after_its_time(root, store, target):
    """It is compared itself: what it leads to may be missing for ever, or an object."""
    store.put_if_absent("v1/x", b"1")
    (root / "v1/x.lock").symlink_to(target)
    assert store.put_if_unchanged("v1/x", b"2", store.get("v1/x", 9).version)
    assert files(root) == ["v1/x"]


def test_a_lock_that_is_released_in_time_is_waited_for(root, store):
    store.put_if_absent("v1/x", b"1")
    process = start(HOLD, root, VOID=30, SECONDS=0.3)
    assert process.stdout.readline() == "held\n"
    patient = FolderStore("file://test", str(root))
    assert patient.put_if_unchanged("v1/x", b"2", patient.get("v1/x", 9).version)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_process_that_was_stopped_while_its_lock_became_void_overwrites_nothing(root, store):
    store.put_if_absent("v1/x", b"1")
    process = start(SLOW_REPLACE, root)
    assert process.stdout.readline() == "stopping\n"
    assert store.put_if_unchanged("v1/x", b"of the quicker process", store.get("v1/x", 99).version)
    process.send_signal(signal.SIGCONT)
    output, errors = process.communicate(timeout=30)
    assert output == "False\n" and process.returncode == 0, errors
    assert store.get("v1/x", 99).data == b"of the quicker process"


def test_a_live_lock_that_was_taken_for_void_gets_its_name_back(root):
    """Two processes that both see a void lock: the second one must not remove the lock that the first one then took."""
    (root / "v1").mkdir()
    with tree.folder(str(root), ("v1",)) as parent, lock.hold(str(root), parent, "x", 30) as held:
        with tree.folder(str(root), (tree.INCOMING,)) as incoming:
            lock._remove_void(incoming, parent, "x.lock", b"the state of an older lock")
        assert held.is_held() and files(root) == ["v1/x.lock"]
    assert files(root) == []


def test_a_lock_that_others_keep_is_an_error_that_names_them(root, store):
    store.put_if_absent("v1/x", b"1")
    process = start(HOLD, root, VOID=30, SECONDS=60)
    assert process.stdout.readline() == "held\n"
    (root / "v1/x.lock").touch()
    try:
        impatient = FolderStore("file://test", str(root), void_seconds=0.2)
        lock_factor, lock.MAX_WAIT_FACTOR = lock.MAX_WAIT_FACTOR, 0.5
        with pytest.raises(StoreError, match=f'other processes kept its lock, at last .*"pid": {process.pid}'):
            impatient.put_if_unchanged("v1/x", b"2", impatient.get("v1/x", 9).version)
    finally:
        lock.MAX_WAIT_FACTOR = lock_factor
        process.kill()
        process.communicate()


def test_what_a_lock_says_of_its_owner_controls_no_terminal(root, store):
    store.put_if_absent("v1/x", b"1")
    (root / "v1/x.lock").write_text("\x1b[2J\nmallory\u202e" + "x" * 2000)
    impatient = FolderStore("file://test", str(root), void_seconds=0.2)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreError) as error:
        patch.setattr(lock, "MAX_WAIT_FACTOR", 0.5)
        impatient.put_if_unchanged("v1/x", b"2", impatient.get("v1/x", 9).version)
    assert str(error.value).isprintable() and "at last  [2J mallory xxx" in str(error.value)
    assert len(str(error.value)) < 500


def test_nothing_is_lost_while_writers_are_killed(root):
    """Writers append for two seconds and are killed again and again; what a writer has reported is in the object."""
    code = """
import os, sys
from opforge.remote.stores.folder.store import FolderStore
store = FolderStore("file://test", os.environ["ROOT"], void_seconds=0.3)
number = 0
while True:
    number += 1
    line = f"{os.getpid()}.{number}\\n".encode()
    while True:
        stored = store.get("v1/x", 1 << 20)
        if store.put_if_unchanged("v1/x", stored.data + line, stored.version):
            break
    sys.stdout.write(line.decode())
    sys.stdout.flush()
"""
    store = FolderStore("file://test", str(root), void_seconds=0.3)
    store.put_if_absent("v1/x", b"")
    reported, end = [], time.monotonic() + 2
    while time.monotonic() < end:
        processes = [start(code, root) for _ in range(3)]
        enough = len(reported) + 20
        wait_for(lambda enough=enough: len(store.get("v1/x", 1 << 20).data.split()) > enough, 30)
        for process in processes:
            process.kill()
        for process in processes:
            reported += [line for line in process.communicate()[0].split("\n")[:-1] if line]
    lines = store.get("v1/x", 1 << 20).data.decode().split()
    assert len(lines) == len(set(lines)) and set(reported) <= set(lines)
    assert len(lines) <= len(reported) + 3 * 50
