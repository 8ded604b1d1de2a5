"""The loader's lock, which a fork must not inherit from a thread that does not exist in the child."""

from __future__ import annotations

import os
import threading

import pytest

from opforge.fast_path import library


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_that_was_forked_while_a_thread_was_loading_can_load():
    held, leave = threading.Event(), threading.Event()

    def load():
        with library.lock:
            held.set()
            leave.wait(30)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert held.wait(30)
        child = os.fork()
        if child == 0:
            os._exit(0 if library.lock.acquire(timeout=2) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        leave.set()
        thread.join()
