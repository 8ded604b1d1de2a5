"""A process that is killed while it stores what it compiled, before each of its operations on files in turn."""

from __future__ import annotations

import os
import signal
import sys
import traceback

import pytest
from support.compiled_graphs import pages

from opforge.cache.current_store import writable_store
from opforge.graphs import session
from opforge.jits import store

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.compile
FILES = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.chmod", "os.utime", "os.truncate"}
"""The audit events of operations that may change a file."""
FEWEST = 20
"""Operations of which one scope consists at least: folders, locks, files, the rename, the limits."""


def scope(where, library):
    """Opens and ends a scope, in which a graph with a library is compiled."""
    of = session.Session(where)
    of.begin()
    of.recording.artifact("aot_autograd", "akey", b"graph")
    of.recording.library("okey", str(library))
    of.end()


def killed(where, library, number):
    """Ends a scope in a forked process, which is killed before its `number`-th operation; returns whether it was."""
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL)
        return bool(status)
    left = number

    def hook(event, _arguments):
        nonlocal left
        if event in FILES:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(hook)
        scope(where, library)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def test_what_a_killed_process_leaves_is_whole_or_nothing(machines, where, tmp_path, warnings_of_the_cache):
    (tmp_path / "library").write_bytes(b"no library")
    machines.enter("before")
    scope(where, tmp_path / "library")  # imports what a scope needs: not to be read again by each process
    number = whole = 0
    own = machines.enter("machine")
    while killed(where, tmp_path / "library", number):
        number += 1
        found = store.find(writable_store(), where, "pickle", lambda _page: "not made here", (), {})
        assert len(found) <= 1 and len(pages(own)) == len(found) and not warnings_of_the_cache(), number
        if found:
            whole += 1
            assert {name for key in found[0].entries for name in found[0].entry(key)} == {"okey.so", "artifact"}
            own = machines.enter(f"machine{number}")
    assert number > FEWEST and whole, (number, whole)
    scope(where, tmp_path / "library")  # with all that those before have left
    assert len(pages(own)) == 1 and not warnings_of_the_cache()
