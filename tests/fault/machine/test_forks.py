"""Loads around fork, spawn and forkserver, and loads inside loads: no process waits for ever."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from support import child_processes, sample_ops, text_files

from opforge.fast_path import library

pytestmark = [pytest.mark.compile, pytest.mark.timeout(90)]


@pytest.fixture
def folder(tmp_path):
    """The folder of an op's source."""
    sample_ops.plain_op(tmp_path / "op", value=5)
    return tmp_path / "op"


START_METHODS = """
import multiprocessing, os, sys, warnings
from support import sample_ops

def load(_number=0):
    return sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")().load().value()

def fail(_number=0):
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
            pool.apply_async(fail).get(5)
        except Exception as error:
            print(type(error).__name__)
    assert load() == 5
    assert dict(os.environ) == environment and os.getcwd() == folder
    print("done")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_loading_works_before_and_after_a_pool_is_started(folder, tmp_path, method, when):
    script = text_files.write(tmp_path, "script.py", START_METHODS)
    done = subprocess.run(
        [sys.executable, script, method, when],
        env=child_processes.environment(FOLDER=str(folder)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    assert done.stdout.splitlines()[:-1] == ["SourceNotFoundError"], "a pool raises the error as its process raised it"


FORK_WHILE_LOADING = """
import os, signal, sys, threading, time, warnings
from support import sample_ops
warnings.simplefilter("ignore")
from opforge.fast_path import library
from opforge.fast_path import library
inside, go_on = threading.Event(), threading.Event()
real = library.opened_file
def slow(entry):
    if threading.current_thread() is not threading.main_thread():
        inside.set(); go_on.wait(30)
    return real(entry)
library.opened_file = slow
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


def test_a_child_that_is_forked_while_another_thread_loads_can_load(folder):
    output = child_processes.run_python(FORK_WHILE_LOADING, env={"FOLDER": str(folder)})
    assert output.strip() == "0", "the child waits for a lock that its parent's thread holds"


PROPERTIES = (
    "builders.toolchains.host:HostToolchain._info",
    "builders.toolchains.zig:ZigToolchain._info",
    "builders.toolchains.triton:TritonToolchain._info",
    "builders.toolchains.device_toolchain:DeviceToolchain.info",
    "builders.toolchains.device_toolchain:DeviceToolchain._translation_digest",
    "accelerator.vendors.vendor:Vendor._module",
    "accelerator.interface.accelerator:Streams._streams",
)
FORK_WHILE_COMPUTING = """
import importlib, os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
module, _, place = os.environ["PROPERTY"].partition(":")
name, _, attribute = place.partition(".")
cls = getattr(importlib.import_module(f"opforge.{module}"), name)
inside, go_on = threading.Event(), threading.Event()
def slow(instance):
    if threading.current_thread() is not threading.main_thread():
        inside.set(); go_on.wait(30)
    return "computed"
vars(cls)[attribute].func = slow
thread = threading.Thread(target=lambda: getattr(cls.__new__(cls), attribute))
thread.start()
assert inside.wait(30)
pid = os.fork()
if pid == 0:
    signal.alarm(10)
    os._exit(0 if getattr(cls.__new__(cls), attribute) == "computed" else 1)
_pid, status = os.waitpid(pid, 0)
go_on.set()
thread.join()
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("place", PROPERTIES)
def test_a_child_that_is_forked_while_another_thread_computes_a_property_can_compute_it(place):
    """On Python 3.11 a functools.cached_property has one lock for all objects of its class."""
    output = child_processes.run_python(FORK_WHILE_COMPUTING, env={"PROPERTY": place})
    assert output.strip() == "0", "the child waits for a lock that its parent's thread holds"


FORK_WHILE_PROBING = """
import os, signal, sys, threading, time, warnings
from support import sample_ops
warnings.simplefilter("ignore")
cls = sample_ops.builder_class(os.environ["FOLDER"], "plain", abi="c")
started, go_on = os.environ["STARTED"], os.environ["GO_ON"]
thread = threading.Thread(target=lambda: cls().load())
thread.start()
deadline = time.monotonic() + 30
while not os.path.exists(started):
    assert time.monotonic() < deadline, "the compiler was not started"
    time.sleep(0.01)
pid = os.fork()
if pid == 0:
    open(go_on, "w").close()
    signal.alarm(60)
    os._exit(0 if cls().load().value() == 5 else 1)
_pid, status = os.waitpid(pid, 0)
thread.join()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_child_that_is_forked_while_another_thread_probes_the_compiler_can_build(folder, tmp_path):
    started, go_on = tmp_path / "started", tmp_path / "go_on"
    compiler = tmp_path / "c++"
    wait = f": >{started}\nwhile [ ! -e {go_on} ]; do sleep 0.02; done"
    text_files.write(tmp_path, "c++", f'#!/bin/sh\n{wait}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    names = {"FOLDER": str(folder), "CXX": str(compiler), "STARTED": str(started), "GO_ON": str(go_on)}
    output = child_processes.run_python(FORK_WHILE_PROBING, env=names)
    assert output.strip() == "0", "the child waits for a lock that its parent's thread holds"


def test_an_op_may_load_another_while_it_is_loaded(folder, monkeypatch):
    """A module may load another op when it is initialised: a lock that is not reentrant would hang here."""
    inner = sample_ops.builder_class(folder, "plain", abi="c")
    outer = sample_ops.plain_op(folder / "outer", name="outer", value=8)
    real, loaded = library.opened_file, []

    def load_inner(entry):
        if entry.record["op"] == "outer":
            thread = threading.Thread(target=lambda: loaded.append(True))
            thread.start()
            thread.join()
            assert library.lock.acquire(timeout=5), "the lock is not reentrant"
            library.lock.release()
            loaded.append(inner().load().value())
        return real(entry)

    monkeypatch.setattr(library, "opened_file", load_inner)
    assert outer().load().value() == 8
    assert loaded == [True, 5]


FORK_WHILE_IMPORTING = """
import importlib.abc, os, signal, sys, threading, time, warnings
import opforge
warnings.simplefilter("ignore")
inside, after = threading.Event(), os.environ["AFTER"]

class Seen(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == after:
            inside.set()

sys.meta_path.insert(0, Seen())
thread = threading.Thread(target=lambda: opforge.OpBuilder and opforge.load)
thread.start()
inside.wait(30)
child = os.fork()
if not child:
    signal.alarm(30)
    assert opforge.OpBuilder and opforge.load
    os._exit(0)
print(os.waitpid(child, 0)[1])
thread.join()
"""


@pytest.mark.parametrize("after", ["opforge.builders", "opforge.fast_path.library", "opforge.builders.load_op"])
def test_a_child_can_import_what_another_thread_was_importing(after):
    assert child_processes.run_python(FORK_WHILE_IMPORTING, env={"AFTER": after}).split() == ["0"]
