"""Sends units to an engine and gathers their outcomes: a refused unit goes elsewhere, a lost one runs again."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, NamedTuple

from opforge.errors import FarmError
from opforge.foundation import settings
from opforge.remote import remotes
from opforge.remote.claims import Claim, name_of
from opforge.remote.stores import open_store

from .engines import Engine
from .unit import Outcome, Unit
from .worker import difference

log = logging.getLogger("opforge")
RUNS = 4
"""How often a unit is begun whose workers are lost: once, and three times again."""
ALONE_FROM = 2
"""After so many lost runs a unit runs alone: then no other unit is lost with it, and none for its sake."""
REFUSALS = 8
"""How often a unit is offered to machines that refuse it, if the engine does not say which ones there are."""
POLL_SECONDS, PAUSE_SECONDS, STOP_SECONDS = 0.5, 0.3, 15.0
NOTICE_SECONDS = 10.0
LOST = "its worker was lost {runs} times; the last words: {words}"


class Sent(NamedTuple):
    """The state of a unit."""

    runs: int = 0
    """How often it was begun, and its worker was lost."""
    refusals: Mapping[str, str] = {}
    """Worker -> its reason."""
    tries: int = 0
    """How often it was refused."""


class Dispatch:
    """One run: the units of one request on one engine."""

    def __init__(self, engine: Engine, units: Sequence[Unit], same_toolchain: bool = False) -> None:
        """Takes units in the order in which they are begun, all for the same remote."""
        self._engine, self._units, self._is_same = engine, list(units), same_toolchain
        self._sent = [Sent() for _ in units]
        self._waiting, self._alone = deque(range(len(units))), deque[int]()
        self._running: dict[Any, int] = {}
        self._noticed = time.monotonic()
        self._has_own_queue, self._renewals = False, 0

    def outcomes(self) -> Generator[tuple[int, Outcome], None, None]:
        """Yields the number and the outcome of each unit as it ends.

        Left by an exception, such as Ctrl-C, it ends the compilers on all machines. Raises StoreError if the remote
        cannot be written, FarmError if the workers differ and must not.
        """
        if not self._units:
            return
        remote = remotes.parse(self._units[0].remote)
        claim = Claim(open_store(remote.url, settings.offline()), name_of("farm", os.urandom(16).hex()))
        claim.take(None)
        try:
            self._units = [unit._replace(run=claim.name) for unit in self._units]
            if self._is_same:
                self._require_one_toolchain()
            while self._waiting or self._alone or self._running:
                yield from self._begin()
                yield from self._ended()
        finally:
            claim.end(is_published=True)
            self._stop()

    def _begin(self) -> Iterator[tuple[int, Outcome]]:
        """Submits as many units as the engine takes; yields the outcomes of all if it takes none any more."""
        try:
            slots = self._engine.slots()
            self._has_own_queue = slots is None
            if slots == 0 and time.monotonic() - self._noticed > NOTICE_SECONDS:
                self._noticed = float("inf")
                log.warning("No worker is connected: %d units wait for one", len(self._waiting))
            while self._waiting and (slots is None or len(self._running) < slots):
                self._submit(self._waiting[0])
                self._waiting.popleft()
            if self._alone and not self._running and not self._waiting and slots != 0:
                self._submit(self._alone[0])
                self._alone.popleft()
        except Exception as error:  # of the engine: a pool that has broken, a scheduler that is gone
            if self._running or self._renewed():
                return
            for number in (*self._waiting, *self._alone):
                yield number, self._lost(number, _words(error))
            self._waiting.clear()
            self._alone.clear()

    def _renewed(self) -> bool:
        """Returns whether the engine was made again. One that takes no unit after that is given up."""
        self._renewals += 1
        try:
            return self._renewals < RUNS and self._engine.renew()
        except Exception as error:
            log.warning("The engine cannot be made again: %s", _words(error))
            return False

    def _submit(self, number: int) -> None:
        future = self._engine.submit(self._units[number].to_json(), [*self._sent[number].refusals])
        self._running[future] = number
        self._renewals = 0

    def _ended(self) -> Iterator[tuple[int, Outcome]]:
        """Waits for units to end, for a moment; yields the outcomes of those that are not sent again."""
        if self._running and all(isinstance(future, Future) for future in self._running):
            wait(self._running, POLL_SECONDS, FIRST_COMPLETED)
        else:  # other kinds of futures cannot be waited for together
            time.sleep(POLL_SECONDS / 5)
        for future in [future for future in self._running if future.done()]:
            number = self._running.pop(future)
            try:
                outcome = Outcome.from_json(future.result())
            except (Exception, asyncio.CancelledError) as error:  # a unit answers whatever happens: the worker is gone
                if again := self._again(number, error):
                    yield number, again
                continue
            if outcome.state == "refused":
                if refused := self._elsewhere(number, outcome):
                    yield number, refused
                continue
            state = "failed" if outcome.state == "interrupted" else outcome.state
            yield number, outcome._replace(state=state, runs=self._sent[number].runs + 1)

    def _again(self, number: int, error: BaseException) -> Outcome | None:
        """Lets a unit run again whose worker was lost; returns its outcome if it has run too often."""
        # Dask itself runs a task again, as often as its scheduler is configured to, and then says how often.
        runs = self._sent[number].runs + 1 + int(getattr(error, "allowed_failures", 0))
        self._sent[number] = self._sent[number]._replace(runs=runs)
        if runs >= RUNS:
            return self._lost(number, _words(error))
        log.info("%s: its worker was lost, it runs again: %s", self._units[number].name, _words(error))
        (self._alone if runs >= ALONE_FROM else self._waiting).append(number)
        return None

    def _lost(self, number: int, words: str) -> Outcome:
        unit, runs = self._units[number], self._sent[number].runs
        reason = LOST.format(runs=runs, words=words) if runs else f"it was not begun: {words}"
        return Outcome(unit.name, unit.target, "failed", kind="FarmError", reason=reason, runs=runs)

    def _elsewhere(self, number: int, outcome: Outcome) -> Outcome | None:
        """Lets another machine do a unit that one has refused; returns its outcome if there is none."""
        sent = self._sent[number]
        is_known = outcome.worker in sent.refusals
        refusals = {**sent.refusals, outcome.worker: f"{outcome.host}: {outcome.reason}"}
        self._sent[number] = sent._replace(refusals=refusals, tries=sent.tries + 1)
        try:
            workers = self._engine.workers()
        except Exception:  # the engine is gone; the next submission says so
            workers = None
        is_last = sent.tries + 1 >= REFUSALS if workers is None else not {*workers} - {*refusals}
        if is_last:
            reason = "no machine can build it:\n" + "\n".join(f"  {text}" for text in dict.fromkeys(refusals.values()))
            return outcome._replace(state="failed", reason=reason)
        if is_known:
            time.sleep(PAUSE_SECONDS)
        self._waiting.append(number)
        return None

    def _require_one_toolchain(self) -> None:
        """Makes every unit name the toolchain of the workers. Raises FarmError if two of them differ."""
        kinds: dict[Any, list[int]] = {}
        for number, unit in enumerate(self._units):
            kinds.setdefault((unit.target.partition(":")[0], bool(unit.options.get("portable"))), []).append(number)
        for numbers in kinds.values():
            futures = self._engine.identify(self._units[numbers[0]].to_json())
            first: Any = None
            if not futures:
                raise FarmError("--same-toolchain", "no worker is connected that could be compared", "Start them first")
            for future in futures:
                try:
                    outcome = Outcome.from_json(future.result())
                except (Exception, asyncio.CancelledError) as error:
                    problem = f"the workers cannot be compared: {_words(error)}"
                    raise FarmError("--same-toolchain", problem, "Try again when they run") from error
                if outcome.state != "cached":
                    continue  # it cannot build the unit, and will say so
                toolchain = json.loads(outcome.reason)
                first = first or toolchain
                if problem := difference(first, toolchain):
                    raise FarmError("--same-toolchain", problem, "Install the same on both, or leave out one of them")
            for number in numbers:
                self._units[number] = self._units[number]._replace(toolchain=first or {})

    def _stop(self) -> None:
        """Waits until the machines have ended what is under way: they see that the claim is gone."""
        deadline = time.monotonic() + STOP_SECONDS
        for future in self._running if self._has_own_queue else ():
            future.cancel()  # what has not begun
        while time.monotonic() < deadline and not all(future.done() for future in self._running):
            time.sleep(PAUSE_SECONDS)
        for future in self._running:
            future.cancel()


def _words(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text[-2000:]}" if text else type(error).__name__
