"""One run of `build-ops`: looks every op up, builds what is missing, several at once, and keeps what became of each."""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

import click

from opforge.cli.progress import Reporter, reporter
from opforge.cli.selection import Selected
from opforge.errors import OpforgeError, OpIncompatibleError

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.builders.run.timeline import Timeline
    from opforge.builders.spec.build_plan import BuildPlan
    from opforge.cache.records.entry import Entry


class Wishes(NamedTuple):
    """How the ops are to be built."""

    debug: bool
    sanitize: str
    portable: bool
    """For older systems too, and for other processors."""
    jobs: int | None
    force: bool
    out: str | None
    """The layer to put them into."""
    any_machine: bool
    """A target was named, so what this machine cannot run is no objection."""


class Outcome(NamedTuple):
    """What became of one op. `state` is built, cached, prebuilt, skipped or failed."""

    name: str
    target: str
    state: str
    seconds: float
    path: str = ""
    result: str = ""
    kind: str = ""
    """The class of the error, where there was one."""
    reason: str = ""


class Missing(NamedTuple):
    """An op that is to be built."""

    builder: OpBuilder
    plan: BuildPlan
    weight: float = 1.0


class Run:
    """The ops of one command, in the order in which they were named, and what has become of each so far."""

    def __init__(
        self, selected: Sequence[Selected], wishes: Wishes, trace: TextIO | None, silent: bool, say: bool
    ) -> None:
        self._selected, self._wishes, self._trace = selected, wishes, trace
        self._silent, self._say = silent, say
        self._outcomes: dict[int, Outcome] = {}
        self._missing: dict[int, Missing] = {}
        named = Counter(one.name for one in selected)
        self._labels = [one.name if named[one.name] == 1 else one.label for one in selected]
        self._ended: set[int] = set()
        self._said = 0

    def build(self) -> list[Outcome]:
        """What became of each op. Raises OpforgeError where the run as a whole cannot start, KeyboardInterrupt."""
        from opforge.builders.run import timeline

        line = timeline.Timeline() if self._trace else None
        timeline.use(line)
        try:
            for number in range(len(self._selected)):
                with timeline.span(f"look up {self._labels[number]}"):
                    self._attempt(number, self._look_up)
                self._tell()
            if self._missing:
                self._build_missing(line)
        finally:
            timeline.use(None)
            if line is not None and self._trace is not None:
                json.dump(line.to_json(), self._trace)
        return [self._outcomes[number] for number in range(len(self._selected))]

    def _look_up(self, number: int, outcome: Outcome) -> Outcome | None:
        """What became of an op that is not to be built; None, and it is among the missing, where it is."""
        from opforge.builders import batch
        from opforge.builders.spec.build_plan import BuildPlan

        one, wishes = self._selected[number], self._wishes
        builder = one.builder(wishes.debug, wishes.sanitize, wishes.portable)
        outcome = self._outcomes[number] = outcome._replace(target=str(builder.target))
        found = batch.look_up(builder, wishes.force, wishes.any_machine)
        if isinstance(found, BuildPlan):
            self._missing[number] = Missing(builder, found)
            return None
        return self._keep(builder, found, outcome)

    def _build_missing(self, line: Timeline | None) -> None:
        from opforge.builders import batch
        from opforge.builders.run import jobs
        from opforge.cache.current import current_store

        layout = current_store().layout
        plans = [one.plan for one in self._missing.values()]
        for number, weight in zip(self._missing, batch.weights(plans, layout), strict=True):
            self._missing[number] = self._missing[number]._replace(weight=weight)
        heaviest = sorted(self._missing, key=lambda number: -self._missing[number].weight)
        total = sum(one.weight for one in self._missing.values())
        with (
            jobs.jobserver_for(self._wishes.jobs, plans, layout) as shared,
            reporter(len(self._missing), self._silent, total) as progress,
        ):

            def work(number: int) -> None:
                began, label = time.time(), self._labels[number]
                progress.begin(label, self._missing[number].weight)
                self._attempt(number, lambda number, outcome: self._build(number, outcome, progress))
                state = self._outcomes[number].state
                if line is not None:
                    line.add(label, began, time.time(), state=state)
                progress.end(label, state)

            todo = {number: functools.partial(work, number) for number in heaviest}
            for _number in batch.in_parallel(todo, heaviest, shared, line):
                self._tell()

    def _build(self, number: int, outcome: Outcome, progress: Reporter) -> Outcome:
        builder, wishes, label = self._missing[number].builder, self._wishes, self._labels[number]
        entry = builder.build(
            on_progress=lambda done, total, title: progress.step(label, done, total, title),
            force=wishes.force,
            jobs=wishes.jobs,
            exact=True,
        )
        return self._keep(builder, entry, outcome)

    def _keep(self, builder: OpBuilder, entry: Entry, outcome: Outcome) -> Outcome:
        if self._wishes.out is not None:
            from opforge.builders.spec.description import describe
            from opforge.cache.transfer import layer

            entry = layer.add(self._wishes.out, entry, describe(builder.spec()).key)
        # A forced build that comes out as before is told from a hit by nothing but the wish.
        state = "built" if self._wishes.force else {"built": "built", "cache": "cached"}.get(entry.origin, "prebuilt")
        return outcome._replace(state=state, path=entry.library, result=entry.key)

    def _attempt(self, number: int, do: Callable[[int, Outcome], Outcome | None]) -> None:
        """Do it, and note what became of the op; that it failed is a result too."""
        began, one = time.monotonic(), self._selected[number]
        self._outcomes.setdefault(number, Outcome(one.name, str(one.target or ""), "failed", 0.0))
        try:
            done = do(number, self._outcomes[number])
        except OpIncompatibleError as error:
            state = "failed" if one.named else "skipped"
            reason = str(error) if one.named else "; ".join(error.reasons)
            done = self._outcomes[number]._replace(state=state, kind=type(error).__name__, reason=reason)
        except OpforgeError as error:
            done = self._outcomes[number]._replace(kind=type(error).__name__, reason=str(error))
        except Exception as error:  # a builder's own code may raise anything, and the other ops are to be built
            reason = f"{type(error).__name__}: {error}"
            done = self._outcomes[number]._replace(kind=type(error).__name__, reason=reason)
        seconds = self._outcomes[number].seconds + time.monotonic() - began
        self._outcomes[number] = (done or self._outcomes[number])._replace(seconds=round(seconds, 3))
        if done is not None:
            self._ended.add(number)

    def _tell(self) -> None:
        """Say what became of the ops that have ended, in the order in which they were named."""
        while self._said < len(self._selected) and self._said in self._ended:
            if self._say:
                click.echo(sentence(self._outcomes[self._said]))
            self._said += 1


def sentence(outcome: Outcome) -> str:
    """What became of an op, as one line."""
    about = f"{outcome.state} {outcome.name}" + (f" for {outcome.target}" if outcome.target else "")
    if outcome.state == "skipped":
        return f"{about}: {outcome.reason}"
    return f"{about} in {outcome.seconds:.2f} s" + (f": {outcome.path}" if outcome.path else "")
