"""Calls a function for many items, in several threads if it is slow: it then mostly waits for a disk or a server."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 8
CHUNK = 64
"""How many items a thread takes at a time."""
SLOW_SECONDS = 0.05
"""A chunk that takes longer mostly waits. Faster ones are not worth threads: these would wait for each other."""


def call_for_each(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Returns the result of `function` for each item, in the items' order.

    The calling thread takes part, so that all is done even if no other thread can be started. After an error or an
    interrupt the threads finish the chunks that they took, and it is raised.
    """
    results: list[list[Result]] = [[] for _chunk in range(0, len(items), CHUNK)]
    numbers = itertools.count()
    errors: list[BaseException] = []
    threads: list[threading.Thread] = []

    def work(is_caller: bool = False) -> None:
        try:
            while not errors and (number := next(numbers)) < len(results):
                began = time.perf_counter()
                results[number] = [function(item) for item in items[number * CHUNK : (number + 1) * CHUNK]]
                if is_caller and not threads and time.perf_counter() - began > SLOW_SECONDS:
                    threads.extend(_started(work, min(THREADS, len(results) - number) - 1))
        except BaseException as error:
            errors.append(error)

    work(is_caller=True)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [result for chunk in results for result in chunk]


def _started(work: Callable[[], object], count: int) -> list[threading.Thread]:
    """Returns the threads that could be started, at most `count`."""
    threads: list[threading.Thread] = []
    for _number in range(count):
        thread = threading.Thread(target=work, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            break  # a limit of the system, or the interpreter is about to end
        threads.append(thread)
    return threads
