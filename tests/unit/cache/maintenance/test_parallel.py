"""Calls of one function for many items in several threads."""

from __future__ import annotations

import threading

import pytest

from opforge.cache.maintenance import parallel

MANY = range(parallel.CHUNK * 5 + 3)


@pytest.fixture(autouse=True)
def slow(monkeypatch):
    """Lets every chunk count as slow."""
    monkeypatch.setattr(parallel, "SLOW_SECONDS", -1.0)


@pytest.mark.parametrize("count", [0, 1, parallel.CHUNK, parallel.CHUNK + 1, len(MANY)])
def test_the_results_are_in_the_order_of_the_items(count):
    assert parallel.call_for_each(str, range(count)) == [str(item) for item in range(count)]


def test_many_items_are_divided_among_threads():
    others = threading.Barrier(3, timeout=30)  # the call ends only if three threads work at once

    def meet(item):
        if item % parallel.CHUNK == 0 and 0 < item < 4 * parallel.CHUNK:
            others.wait()
        return item

    assert parallel.call_for_each(meet, MANY) == [*MANY]


def test_few_items_are_left_to_the_caller():
    threads = {*parallel.call_for_each(lambda _item: threading.get_ident(), range(parallel.CHUNK))}
    assert threads == {threading.get_ident()}


def test_fast_calls_are_left_to_the_caller(monkeypatch):
    monkeypatch.setattr(parallel, "SLOW_SECONDS", 30.0)
    assert {*parallel.call_for_each(lambda _item: threading.get_ident(), MANY)} == {threading.get_ident()}


@pytest.mark.parametrize("startable", [0, 1])
def test_all_is_done_if_threads_cannot_be_started(monkeypatch, startable):
    start, started = threading.Thread.start, []

    def start_some(thread):
        if len(started) >= startable:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    assert parallel.call_for_each(str, MANY) == [str(item) for item in MANY] and len(started) == startable


@pytest.mark.parametrize("error", [IndexError, KeyboardInterrupt])
def test_an_error_is_raised_and_no_further_chunk_is_begun(monkeypatch, error):
    monkeypatch.setattr(parallel, "THREADS", 1)
    called = []

    def fail(item):
        called.append(item)
        if item == parallel.CHUNK + 1:
            raise error

    with pytest.raises(error):
        parallel.call_for_each(fail, MANY)
    assert called == [*range(parallel.CHUNK + 2)]


def test_an_error_of_another_thread_is_raised(monkeypatch):
    monkeypatch.setattr(parallel, "CHUNK", 1)
    both = threading.Barrier(2, timeout=30)

    def fail_elsewhere(item):
        if item:
            both.wait()
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("of a thread")

    with pytest.raises(ValueError, match="of a thread"):
        parallel.call_for_each(fail_elsewhere, range(3))
