"""Many processes and threads that request one op at once: one builds it, with locks and without."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import time

import pytest
from support import child_processes, gate, polling, sample_ops, text_files

from opforge.cache import current_store, staging
from opforge.cache.filesystem import lock
from opforge.cache.layout import Layout
from opforge.errors import CompileError

pytestmark = [pytest.mark.compile, pytest.mark.timeout(90)]
LOAD = """
import os, sys, time
from support import sample_ops
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
    """An op whose compiler waits while the gate is closed; it is open at first."""
    path = tmp_path / "op"
    sample_ops.plain_op(path, source=gate.SOURCE, value=5)
    text_files.write(path, "gate.h", "")
    return path


def start(folder, count, code=LOAD, **env):
    """Starts processes that load the op at the same moment."""
    env = {"FOLDER": str(folder), "GO": str(folder / "go"), **env}
    processes = [child_processes.start_python(code, env=env) for _number in range(count)]
    text_files.write(folder, "go", "")
    return processes


def outputs(processes):
    """Waits for processes; returns what each wrote to stdout and stderr."""
    results = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        results.append((out, err))
    return results


def test_processes_that_load_one_cold_op_build_it_once(folder, own_store):
    gate.close_gate(folder)
    processes = start(folder, 3, OPFORGE_LOG=str(folder.parent / "events"))
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    time.sleep(1.0)  # the others start, and wait
    assert len(child_processes.compilers_in(folder)) == 1
    gate.open_gate(folder)
    lines = [out.split() for out, _err in outputs(processes)]
    assert [value for value, _origin, _time in lines] == ["5"] * 3
    assert sorted(origin for _value, origin, _time in lines) == ["built"] + ["cache"] * 2
    assert (folder.parent / "events").read_text().count('"event": "build"') == 1
    assert len(os.listdir(own_store / "v2" / "entries")) == 1
    assert os.listdir(own_store / "v2" / "staging") == []


def test_a_waiter_reports_who_builds(folder):
    gate.close_gate(folder)
    (builder,) = start(folder, 1)
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    waiters = start(folder, 1)
    time.sleep(lock.FIRST_NOTICE + 1.0)
    gate.open_gate(folder)
    outputs([builder])
    ((_out, err),) = outputs(waiters)
    assert re.search(
        rf"plain: waiting for process {builder.pid} on \S+, which has been building since \d\d:\d\d:\d\d", err
    ), err


def test_a_wait_ends_at_its_timeout_and_names_the_owner(folder):
    gate.close_gate(folder)
    (builder,) = start(folder, 1)
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    ((out, _err),) = outputs(start(folder, 1, OPFORGE_LOCK_TIMEOUT="0.5"))
    assert re.match(rf"LockTimeoutError plain: waited 0.5 s for process {builder.pid} on ", out)
    gate.open_gate(folder)
    assert outputs([builder])[0][0].startswith("5 built")


def test_threads_that_load_one_cold_op_build_it_once(folder):
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
    assert len({id(op) for op in ops}) == 1, "one module for each entry"


def test_every_waiter_raises_the_builders_error(folder):
    text_files.write(folder, "plain.cpp", '#include "gate.h"\nint value( { return 1; }\n')
    gate.close_gate(folder)
    processes = start(folder, 3)
    polling.wait_for(lambda: child_processes.compilers_in(folder))
    time.sleep(1.0)
    gate.open_gate(folder)
    texts = {out for out, _err in outputs(processes)}
    assert len(texts) == 1, texts
    (text,) = texts
    assert text.startswith("CompileError plain: compile plain.cpp failed: ") and "plain.cpp:2:" in text
    assert "full log: " in text
    assert re.search(r"'diagnostics': \({'file': '.*plain.cpp', 'line': 2, 'column': \d+, 'severity': 'error', ", text)


def test_a_failure_is_not_kept_for_later_loads(folder):
    text_files.write(folder, "plain.cpp", "broken")
    cls = sample_ops.builder_class(folder, "plain", abi="c")
    for _number in range(2):
        with pytest.raises(CompileError):
            cls().load()
    sample_ops.plain_op(folder, source=gate.SOURCE, value=6)
    assert cls().load().value() == 6


WITHOUT_LOCK = (
    """
import contextlib
from opforge.cache.filesystem import lock
@contextlib.contextmanager
def acquire_nothing(*_arguments, **_options):
    yield lock.LockResult.FREE
lock.acquire = acquire_nothing
"""
    + LOAD
)


def test_without_locks_the_first_publisher_wins_and_the_entry_is_intact(folder, own_store):
    gate.close_gate(folder)
    processes = start(folder, 2, WITHOUT_LOCK)
    polling.wait_for(
        lambda: len(child_processes.compilers_in(folder)) == 2, reason="without a lock, every process builds"
    )
    os.unlink(folder / "gate.h")
    text_files.write(folder, "gate.h", "")
    for pid in child_processes.compilers_in(folder):
        with contextlib.suppress(ProcessLookupError):  # it came to the include when the new file was there
            os.kill(pid, 9)  # they wait at a pipe that is gone; their builders report an error
    outputs(processes)
    lines = [out.split() for out, _err in outputs(start(folder, 3, WITHOUT_LOCK))]
    assert [value for value, *_rest in lines] == ["5"] * 3
    (key,) = os.listdir(own_store / "v2" / "entries")
    entry = own_store / "v2" / "entries" / key
    record = json.loads((entry / "record.json").read_text())
    assert hashlib.sha256((entry / record["file"]).read_bytes()).hexdigest() == record["sha256"]
    assert os.listdir(own_store / "v2" / "staging") == []


def test_of_two_publishers_of_one_entry_at_the_same_moment_one_wins(tmp_path):
    layout = Layout(str(tmp_path / "store"))
    current_store.prepare(str(layout), frozenset({0, os.geteuid()}))
    for number in range(30):
        folders = []
        for author in "ab":
            folder = tmp_path / f"{number}-{author}"
            folder.mkdir()
            text_files.write(folder, "one", author)
            text_files.write(folder, "two", author)
            folders.append(str(folder))
        barrier, results = threading.Barrier(2), []

        def publish(folder, number=number, barrier=barrier, results=results):
            barrier.wait()
            results.append((staging.publish(layout, folder, f"key{number}"), folder[-1]))

        threads = [threading.Thread(target=publish, args=(folder,)) for folder in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(is_first for is_first, _author in results) == [False, True]
        (winner,) = [author for is_first, author in results if is_first]
        for name in ("one", "two"):
            with open(os.path.join(layout.entry(f"key{number}"), name)) as file:
                assert file.read() == winner
