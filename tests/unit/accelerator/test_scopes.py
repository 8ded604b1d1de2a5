"""Scopes with another accelerator: nesting, other threads, and forks."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest
from support.devices.fake_packages import accelerator_source

from opforge.accelerator import get_accelerator, set_accelerator, use_accelerator
from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.errors import AcceleratorInUseError


@pytest.fixture(autouse=True)
def on_a_machine_without_devices(no_devices):
    pass


def test_scopes_nest_and_restore_even_after_an_error():
    outer = get_accelerator()
    with pytest.raises(ZeroDivisionError), use_accelerator("null") as null:
        assert get_accelerator() is null
        with use_accelerator(CPUAccelerator()) as inner:
            assert get_accelerator() is inner
        assert get_accelerator() is null
        1 / 0
    assert get_accelerator() is outer


def test_a_replacement_inside_a_scope_ends_with_it():
    outer = get_accelerator()
    with use_accelerator("null"):
        set_accelerator("cpu")
        assert get_accelerator().name == "cpu"
    assert get_accelerator() is outer


def in_thread(function) -> list[BaseException]:
    """Runs the function in another thread, and returns what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors


def test_other_threads_see_a_scopes_accelerator_and_cannot_replace_it():
    with use_accelerator("null") as null:
        seen = []
        assert in_thread(lambda: seen.append(get_accelerator())) == []
        assert seen == [null]
        (scope_error,) = in_thread(lambda: use_accelerator("cpu").__enter__())
        (replacement_error,) = in_thread(lambda: set_accelerator("cpu"))
        assert get_accelerator() is null
    assert isinstance(scope_error, AcceleratorInUseError) and isinstance(replacement_error, AcceleratorInUseError)
    expected = "use_accelerator('cpu') is not possible: another thread is inside use_accelerator('null')"
    assert expected in str(scope_error)
    assert in_thread(lambda: set_accelerator("cpu")) == []


def in_fork(function) -> str:
    """Runs the function in a fork of this process, and returns its result; "" if the fork hangs."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            result = function()
        except BaseException as error:
            result = repr(error)
        os.write(write_end, result.encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end, encoding="utf-8") as file:
        result = file.read()
    os.waitpid(child, 0)
    return result


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
allows_threads = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@needs_fork
@allows_threads
def test_a_fork_keeps_the_scopes_of_its_own_thread_and_closes_another_threads():
    scope = use_accelerator("null")

    def leave_after_the_fork() -> str:
        inside = get_accelerator().name
        scope.__exit__(None, None, None)
        return f"{inside}, then {get_accelerator().name}"

    outer = get_accelerator()
    with scope:
        assert in_fork(lambda: get_accelerator().name) == "null"
        results = []
        assert in_thread(lambda: results.append(in_fork(leave_after_the_fork))) == []
        assert results == ["cpu, then cpu"]
        assert get_accelerator().name == "null"
    assert get_accelerator() is outer


@needs_fork
@allows_threads
def test_a_fork_can_choose_while_another_thread_of_its_parent_is_choosing(add_accelerator):
    events = "    entered, leave = threading.Event(), threading.Event()\n"
    source = accelerator_source(available="self.entered.set() or self.leave.wait(60)", extra=events)
    module = add_accelerator("quick", f"import threading\n{source}")
    choosing = threading.Thread(target=get_accelerator)
    choosing.start()
    while module not in sys.modules or not hasattr(sys.modules[module], "Quick"):
        assert choosing.is_alive()
        time.sleep(0.01)
    quick = sys.modules[module].Quick
    try:
        assert quick.entered.wait(20)
        assert in_fork(lambda: set_accelerator("null") or get_accelerator().name) == "null"
    finally:
        quick.leave.set()
        choosing.join()
    assert get_accelerator().name == "quick"
