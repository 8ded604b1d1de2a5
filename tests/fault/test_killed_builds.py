"""Builds that are killed or interrupted: no compiler outlives its builder, and the next load builds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from support import child_processes, gate, polling, sample_ops

pytestmark = [
    pytest.mark.compile,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc"),
]
BUILD = """
import os, sys
from support import sample_ops
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
print(op.value(), op.origin)
"""
WITH_WORKER = """
import os, sys, threading, time, traceback
from support import child_processes, polling, sample_ops
def fork():
    polling.wait_for(lambda: child_processes.compilers_in(os.environ["FOLDER"]))
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    print(pid, flush=True)
threading.Thread(target=fork, daemon=True).start()
op = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
print(op.value(), op.origin)
"""


@pytest.fixture
def folder(tmp_path):
    """An op whose compiler waits at a closed gate."""
    path = tmp_path / "op"
    sample_ops.plain_op(path, source=gate.SOURCE, value=5)
    gate.close_gate(path)
    return path


def start(folder, code=BUILD, **options):
    process = child_processes.start_python(code, env={"FOLDER": str(folder)}, **options)
    polling.wait_for(
        lambda: child_processes.compilers_in(folder) or process.poll() is not None, reason="no compiler has started"
    )
    assert process.poll() is None, process.communicate()
    return process


def supervisor_of(builder):
    (pid,) = [pid for pid in child_processes.matching("supervisor.py") if parent(pid) == builder.pid]
    return pid


def ninja_of(builder):
    supervisor = supervisor_of(builder)
    return polling.wait_for(lambda: [pid for pid in child_processes.matching("ninja") if parent(pid) == supervisor])[0]


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return -1


def assert_no_process_is_left(folder, store):
    polling.wait_for(
        lambda: not child_processes.matching(folder) and not child_processes.matching(store),
        5,
        "a process of the build is left",
    )


def assert_next_load_builds(folder, store):
    began = time.monotonic()
    gate.open_gate(folder)
    op = sample_ops.builder_class(folder, "plain", abi="c")().load()
    assert (op.value(), op.origin) == (5, "built")
    assert time.monotonic() - began < 20, "it waited for something"
    assert os.listdir(store / "v2" / "staging") == [], "the dead builder's folder is swept"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_the_compilers_of_a_killed_builder_end(folder, own_store, number):
    builder = start(folder)
    builder.send_signal(number)
    builder.communicate()
    assert_no_process_is_left(folder, own_store)
    assert_next_load_builds(folder, own_store)


def test_the_compilers_of_a_killed_process_group_end(folder, own_store):
    builder = start(folder, start_new_session=True)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.communicate()
    assert_no_process_is_left(folder, own_store)
    assert_next_load_builds(folder, own_store)


def test_the_compilers_of_a_killed_builder_end_although_a_forked_worker_lives(folder, own_store):
    """The worker holds copies of the lock's file and of the supervisor's pipe."""
    builder = start(folder, WITH_WORKER)
    worker = int(builder.stdout.readline())
    try:
        builder.kill()
        builder.wait()
        assert_no_process_is_left(folder, own_store)
        assert os.path.exists(f"/proc/{worker}")
        assert_next_load_builds(folder, own_store)
    finally:
        os.kill(worker, signal.SIGKILL)
        builder.communicate()


def test_a_build_goes_on_when_ninja_alone_is_killed(folder, own_store):
    builder = start(folder)
    before = child_processes.compilers_in(folder)
    os.kill(ninja_of(builder), signal.SIGKILL)
    polling.wait_for(
        lambda: not before.keys() & child_processes.compilers_in(folder).keys(), 5, "its compilers are left"
    )
    polling.wait_for(lambda: child_processes.compilers_in(folder), 10, "it is not run again")
    gate.open_gate(folder)
    out, err = builder.communicate(timeout=30)
    assert out == "5 built\n", err


def test_a_ninja_that_is_killed_repeatedly_is_an_error(folder, own_store):
    code = BUILD.replace("op =", "from opforge.errors import BuildResourceError\ntry:\n  op =").replace(
        "print(", "except BuildResourceError as error: print(error)\nelse: print("
    )
    builder = start(folder, code)
    end = time.monotonic() + 20
    while builder.poll() is None and time.monotonic() < end:
        for pid in child_processes.matching("ninja"):
            if parent(parent(pid)) == builder.pid:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    out, err = builder.communicate(timeout=5)
    assert out.startswith("plain: the build stopped: ninja was ended by signal 9. Run it again."), out + err
    assert_no_process_is_left(folder, own_store)
    assert_next_load_builds(folder, own_store)


def test_a_build_goes_on_when_the_supervisor_is_killed(folder, own_store):
    builder = start(folder)
    os.kill(supervisor_of(builder), signal.SIGKILL)
    time.sleep(0.3)
    gate.open_gate(folder)
    out, err = builder.communicate(timeout=30)
    assert out == "5 built\n", err
    assert_no_process_is_left(folder, own_store)


def test_a_store_works_after_builder_and_supervisor_are_killed_together(folder, own_store):
    builder = start(folder)
    supervisor, *others = supervisor_of(builder), ninja_of(builder), *child_processes.compilers_in(folder)
    os.kill(supervisor, signal.SIGKILL)
    builder.kill()
    builder.communicate()
    for pid in others:
        try:
            os.kill(pid, signal.SIGKILL)  # no process of opforge is left that could
        except ProcessLookupError:
            continue
    assert_next_load_builds(folder, own_store)


# -- interrupted -------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, sys
from support import child_processes, sample_ops
try:
    sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load()
except KeyboardInterrupt:
    store = os.path.join(os.environ["OPFORGE_CACHE_DIR"], "v2", "staging")
    print("interrupted", os.listdir(store), sorted(child_processes.matching(os.environ["FOLDER"])))
"""


def test_an_interrupted_build_leaves_no_folder_and_no_compiler(folder, own_store):
    builder = start(folder, INTERRUPTED)
    builder.send_signal(signal.SIGINT)
    out, err = builder.communicate(timeout=20)
    assert out == "interrupted [] []\n", err
    assert_next_load_builds(folder, own_store)


def test_an_interrupted_build_ends_at_once_although_a_worker_holds_the_pipe(folder, own_store):
    code = WITH_WORKER.replace("op = sample_ops", "try:\n  op = sample_ops").replace(
        "print(op.value(), op.origin)", "except KeyboardInterrupt: print('interrupted', flush=True)"
    )
    builder = start(folder, code)
    worker = int(builder.stdout.readline())
    try:
        builder.send_signal(signal.SIGINT)
        lines = []
        reader = threading.Thread(target=lambda: lines.append(builder.stdout.readline()), daemon=True)
        reader.start()
        reader.join(10)
        assert lines == ["interrupted\n"], "it waits for compilers that no process ends"
        assert_no_process_is_left(folder, own_store)
    finally:
        os.kill(worker, signal.SIGKILL)
        builder.kill()
        builder.communicate()


def test_a_progress_callback_that_raises_ends_the_build(folder, own_store):
    gate.open_gate(folder)

    class Stop(Exception):
        pass

    def stop(*_step):
        raise Stop

    with pytest.raises(Stop):
        sample_ops.builder_class(folder, "plain", abi="c")().build(on_progress=stop)
    assert os.listdir(own_store / "v2" / "staging") == []
    assert_no_process_is_left(folder, own_store)


def test_the_supervisor_kills_its_session_when_its_pipe_closes(tmp_path):
    path = os.path.join(os.path.dirname(sys.modules["opforge"].__file__), "builders", "run", "supervisor.py")
    mark = f"{tmp_path}/mark"
    script = f"setsid sleep 61 & sh -c 'sleep 62; : {mark}' & sleep 63; : {mark}"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", path, str(tmp_path / "peak"), "sh", "-c", script],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    polling.wait_for(lambda: len(child_processes.matching(mark, but=[process.pid])) >= 2)
    process.stdin.close()
    assert process.wait(10) == 1
    assert child_processes.matching(mark) == {}
    for pid in child_processes.matching("sleep 61"):
        os.kill(pid, signal.SIGKILL)  # it has left the session, so the supervisor cannot find it
