"""Many who want one op at once: processes, threads, forks; with locks and without."""

from __future__ import annotations

import json
import os
import re
import threading
import time

import pytest
from support import child_processes, gate, polling, sample_ops, text_files

from opforge.cache.filesystem import lock as locks
from opforge.errors import CompileError

pytestmark = [pytest.mark.compile, pytest.mark.timeout(90)]
LOAD = """
import os, sys, time
while not os.path.exists(os.environ["GO"]): time.sleep(0.005)
from opforge.errors import OpforgeError
builder = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")()
try:
    op = builder.load()
    print(op.value(), op.origin, time.time())
except OpforgeError as error:
    print(type(error).__name__, str(error), vars(error))
"""


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "op"
    sample_ops.plain_op(path, source=gate.SOURCE, value=5)
    text_files.write(path, "gate.h", "")
    return path


def crowd(folder, count, code=LOAD, **env):
    go = str(folder / "go")
    started = [child_processes.start_python(code, env={"FOLDER": str(folder), "GO": go, **env}) for _ in range(count)]
    text_files.write(folder, "go", "")
    return started


def said(processes):
    found = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        found.append((out, err))
    return found


def test_processes_that_want_one_cold_op_build_it_once(folder, own_store):
    gate.close_gate(folder)
    processes = crowd(folder, 6)
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    time.sleep(1.0)  # the others arrive and wait
    assert len(child_processes.compilers_in(folder)) == 1
    gate.open_gate(folder)
    answers = [out.split() for out, _err in said(processes)]
    assert [value for value, _origin, _at in answers] == ["5"] * 6
    assert sorted(origin for _value, origin, _at in answers) == ["built"] + ["cache"] * 5
    assert len(os.listdir(own_store / "v1" / "entries")) == 1
    assert os.listdir(own_store / "v1" / "staging") == []


def test_waiters_are_told_who_builds(folder):
    gate.close_gate(folder)
    first = crowd(folder, 1)
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    second = crowd(folder, 1)
    time.sleep(locks.FIRST_NOTICE + 1.0)
    gate.open_gate(folder)
    said(first)
    ((_out, err),) = said(second)
    assert re.search(
        rf"plain: waiting for process {first[0].pid} on \S+, which has been building since \d\d:\d\d:\d\d", err
    ), err


def test_a_wait_ends_at_its_timeout_with_the_owner(folder):
    gate.close_gate(folder)
    first = crowd(folder, 1)
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    second = crowd(folder, 1, OPFORGE_LOCK_TIMEOUT="0.5")
    ((out, _err),) = said(second)
    assert re.match(rf"LockTimeoutError plain: waited 0.5 s for process {first[0].pid} on ", out)
    gate.open_gate(folder)
    assert said(first)[0][0].startswith("5 built")


def test_threads_that_want_one_cold_op_build_it_once(folder):
    cls = sample_ops.builder_class(folder, "plain", abi="c")
    shared = cls()
    ops, barrier = [], threading.Barrier(8)

    def load(builder):
        barrier.wait()
        ops.append(builder.load())

    threads = [threading.Thread(target=load, args=(shared if number % 2 else cls(),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ops) == 8 and {op.value() for op in ops} == {5}
    assert len({id(op) for op in ops}) == 1, "one module a result"


def test_every_waiter_gets_the_builders_own_error(folder):
    text_files.write(folder, "plain.cpp", '#include "gate.h"\nint value( { return 1; }\n')
    gate.close_gate(folder)
    processes = crowd(folder, 4)
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    time.sleep(1.0)
    gate.open_gate(folder)
    answers = {out for out, _err in said(processes)}
    assert len(answers) == 1, answers
    (text,) = answers
    assert text.startswith("CompileError plain: compile plain.cpp failed: ") and "plain.cpp:2:" in text
    assert "full log: " in text
    assert re.search(r"'diagnostics': \({'file': '.*plain.cpp', 'line': 2, 'column': \d+, 'severity': 'error', ", text)


def test_a_failure_is_not_kept_for_those_who_come_later(folder):
    text_files.write(folder, "plain.cpp", "broken")
    cls = sample_ops.builder_class(folder, "plain", abi="c")
    for _time in range(2):
        with pytest.raises(CompileError):
            cls().load()
    sample_ops.plain_op(folder, source=gate.SOURCE, value=6)
    assert cls().load().value() == 6


WITHOUT_LOCK = (
    """
import contextlib
from opforge.cache.filesystem import lock
@contextlib.contextmanager
def nothing(*_arguments, **_options):
    yield lock.LockResult.FREE
lock.held = nothing
"""
    + LOAD
)


def test_without_locks_the_first_publisher_wins_and_the_entry_is_whole(folder, own_store):
    gate.close_gate(folder)
    processes = crowd(folder, 3, WITHOUT_LOCK)
    polling.wait_for(lambda: len(child_processes.compilers_in(folder)) == 3, reason="without a lock, all build")
    os.unlink(folder / "gate.h")
    text_files.write(folder, "gate.h", "")
    for pid in child_processes.compilers_in(folder):
        os.kill(pid, 9)  # they stand in a pipe that is gone; their builders say so
    said(processes)
    processes = crowd(folder, 4, WITHOUT_LOCK)
    answers = [out.split() for out, _err in said(processes)]
    assert [value for value, *_rest in answers] == ["5"] * 4
    (result,) = os.listdir(own_store / "v1" / "entries")
    entry = own_store / "v1" / "entries" / result
    binary = json.loads((entry / "manifest.json").read_text())["binary"]
    import hashlib

    assert hashlib.sha256((entry / binary["file"]).read_bytes()).hexdigest() == binary["sha256"]
    assert os.listdir(own_store / "v1" / "staging") == []


def test_two_publishers_of_one_result_at_the_same_time_leave_one_entry(tmp_path):
    """The same rename, many times over, with nothing between the two."""
    from opforge.cache import current, staging
    from opforge.cache.layout import Layout

    place = Layout(str(tmp_path / "store"))
    current.prepare(str(place), frozenset({0, os.geteuid()}))
    for number in range(30):
        folders = []
        for author in "ab":
            folder = tmp_path / f"{number}-{author}"
            folder.mkdir()
            text_files.write(folder, "one", author)
            text_files.write(folder, "two", author)
            folders.append(str(folder))
        barrier, won = threading.Barrier(2), []

        def publish(folder, number=number, barrier=barrier, won=won):
            barrier.wait()
            won.append((staging.publish(place, folder, f"r{number}"), folder[-1]))

        threads = [threading.Thread(target=publish, args=(folder,)) for folder in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(first for first, _author in won) == [False, True]
        (author,) = [author for first, author in won if first]
        entry = place.entry(f"r{number}")
        for name in ("one", "two"):
            with open(os.path.join(entry, name)) as file:
                assert file.read() == author


# -- fork, spawn, forkserver and threads -------------------------------------------------------------------------------

START_METHODS = """
import multiprocessing, os, sys, warnings

def load(_number=0):
    return sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load().value()

def failing(_number=0):
    return sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c", sources=["gone.cpp"])().load()

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    method, when = sys.argv[1:]
    environment, folder = dict(os.environ), os.getcwd()
    if when == "after":
        assert load() == 5
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map(load, range(4)) == [5] * 4
        try:
            pool.apply_async(failing).get(5)
        except Exception as error:
            print(type(error).__name__)
    assert load() == 5
    assert dict(os.environ) == environment and os.getcwd() == folder
    print("all is well")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_loading_works_before_and_after_a_process_is_started(folder, tmp_path, method, when):
    import subprocess
    import sys

    script = text_files.write(tmp_path, "script.py", START_METHODS)
    done = subprocess.run(
        [sys.executable, script, method, when],
        env=child_processes.environment(FOLDER=str(folder)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all is well"
    assert done.stdout.splitlines()[:-1] == ["SourceNotFoundError"], "a pool's error comes back as it was raised"


FORK_WHILE_LOADING = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
from collections.abc import Mapping
from opforge.builders import loader
inside, go_on = threading.Event(), threading.Event()
real = loader.open_library
def slow(op, path):
    if threading.current_thread() is not threading.main_thread():
        inside.set(); go_on.wait(30)
    return real(op, path)
loader.open_library = slow
cls = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")
cls().build()
thread = threading.Thread(target=lambda: cls().load())
thread.start()
assert inside.wait(30)
pid = os.fork()
if pid == 0:
    signal.alarm(10)
    os._exit(0 if cls().load().value() == 5 else 1)
_pid, status = os.waitpid(pid, 0)
go_on.set()
thread.join()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_fork_while_another_thread_loads_can_load(folder):
    assert child_processes.run_python(FORK_WHILE_LOADING, env={"FOLDER": str(folder)}).strip() == "0", (
        "the child waits for a lock for ever"
    )


def test_an_op_may_load_another_while_it_is_loaded(folder, monkeypatch):
    """A module's own initialisation may load another op; a lock that cannot be taken twice would hang here."""
    from opforge.builders import loader

    inner = sample_ops.builder_class(folder, "plain", abi="c")
    outer = sample_ops.plain_op(folder / "outer", name="outer", value=8)
    real, seen = loader.open_library, []

    def nested(op, path):
        if op == "outer":
            thread = threading.Thread(target=lambda: seen.append(True))
            thread.start()
            thread.join()
            assert loader.lock.acquire(timeout=5) if hasattr(loader, "lock") else True, "the lock cannot be taken twice"
            if hasattr(loader, "lock"):
                loader.lock.release()
            seen.append(inner().load().value())
        return real(op, path)

    monkeypatch.setattr(loader, "open_library", nested)
    assert outer().load().value() == 8
    assert seen == [True, 5]
