"""Two processes at one store, in any order of their requests: threads that take turns as a test decides."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from opforge.remote.stores.protocol import ObjectStore

METHODS = ("get", "exists", "download", "put_if_absent", "put_if_unchanged", "list", "names", "delete")


class Turns:
    """A store of which each request waits for its turn."""

    def __init__(self, store: Any) -> None:
        self._store, self.url = store, store.url
        self.arrived, self.gate = threading.Semaphore(0), threading.Semaphore(0)

    def read_each(self, names: Any, limit: int) -> Any:
        """Reads each file in a turn of its own."""
        return ObjectStore.read_each(self, names, limit)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in METHODS:
            return method

        def in_turn(*arguments: Any) -> Any:
            self.arrived.release()
            assert self.gate.acquire(timeout=60)
            result = method(*arguments)
            return list(result) if isinstance(result, Iterator) else result

        return in_turn


def run(make_store: Callable[[], Any], seed: int, *actions: Callable[[Any], Any]) -> None:
    """Runs actions, each with a store of its own, and lets one request through at a time, chosen at random."""
    chosen, stores, errors = random.Random(seed), [Turns(make_store()) for _ in actions], list[BaseException]()
    ended = set[int]()

    def act(number: int) -> None:
        try:
            actions[number](stores[number])
        except BaseException as error:
            errors.append(error)
        finally:
            ended.add(number)
            stores[number].arrived.release()

    threads = [threading.Thread(target=act, args=(number,), daemon=True) for number in range(len(actions))]
    for number, thread in enumerate(threads):
        thread.start()
        assert stores[number].arrived.acquire(timeout=60)
    while alive := [number for number in range(len(actions)) if number not in ended]:
        number = chosen.choice(alive)
        stores[number].gate.release()
        assert stores[number].arrived.acquire(timeout=60), "a request has no end"
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
