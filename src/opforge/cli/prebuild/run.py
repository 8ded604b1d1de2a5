"""One run of `build-ops`: looks up every op, builds the missing ones, several at once, and keeps each outcome."""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from opforge.cli.guard import error_text
from opforge.cli.progress import Reporter, reporter
from opforge.cli.selection import Selected
from opforge.errors import OpIncompatibleError
from opforge.remote.farm.unit import Outcome

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.builders.declaration.build_plan import BuildPlan
    from opforge.builders.run.timeline import Timeline
    from opforge.fast_path.library import Entry


class BuildOptions(NamedTuple):
    """How the ops are built."""

    debug: bool
    sanitize: str
    portable: bool
    """Whether to build for older systems and other processors."""
    jobs: int | None
    """Run at most this many compilers at once. None: `OPFORGE_JOBS`, or what the machine allows."""
    force: bool
    out: str | None
    """The layer that the entries are copied to. None if there is none."""
    any_machine: bool
    """Whether a target was requested: then an op that this machine cannot run is built too."""


class Missing(NamedTuple):
    """An op that must be built."""

    builder: OpBuilder
    plan: BuildPlan
    weight: float = 1.0


class Run:
    """The ops of one command, in the order in which they were requested, and the outcome of each so far."""

    def __init__(
        self, selected: Sequence[Selected], options: BuildOptions, trace: str | None, quiet: bool, print_lines: bool
    ) -> None:
        self._selected, self._options, self._trace = selected, options, trace
        self._quiet, self._print_lines = quiet, print_lines
        self._outcomes: dict[int, Outcome] = {}
        self._missing: dict[int, Missing] = {}
        counts = Counter(op.name for op in selected)
        self._labels = [op.name if counts[op.name] == 1 else op.label for op in selected]
        self._ended: set[int] = set()
        self._printed = 0

    def build(self) -> list[Outcome]:
        """Returns the outcome of each op. Raises KeyboardInterrupt, and OpforgeError if the whole run cannot start."""
        from opforge.builders.run import timeline

        line = timeline.Timeline() if self._trace else None
        timeline.use(line)
        try:
            for number in range(len(self._selected)):
                with timeline.span(f"look up {self._labels[number]}"):
                    self._attempt(number, self._look_up)
                self._print_ended()
            if self._has_work:
                self._build_missing(line)
        finally:
            timeline.use(None)
            if line is not None and self._trace is not None:
                with open(self._trace, "w", encoding="utf-8") as file:
                    json.dump(line.to_json(), file)
        return [self._outcomes[number] for number in range(len(self._selected))]

    @property
    def _has_work(self) -> bool:
        return bool(self._missing)

    def _look_up(self, number: int, outcome: Outcome) -> Outcome | None:
        """Returns the outcome of an op that need not be built. Otherwise adds it to the missing ones; returns None."""
        from opforge.builders import batch
        from opforge.builders.declaration.build_plan import BuildPlan

        op, options = self._selected[number], self._options
        builder = op.builder(options.debug, options.sanitize, options.portable)
        outcome = self._outcomes[number] = outcome._replace(target=str(builder.target))
        match = batch.look_up(builder, options.force, options.any_machine)
        if isinstance(match, BuildPlan):
            self._missing[number] = Missing(builder, match)
            return None
        return self._keep(builder, match, outcome)

    def _build_missing(self, line: Timeline | None) -> None:
        from opforge.builders import batch
        from opforge.builders.run import parallelism
        from opforge.cache.current_store import current_store

        layout = current_store().layout
        plans = [missing.plan for missing in self._missing.values()]
        for number, weight in zip(self._missing, batch.weights(plans, layout), strict=True):
            self._missing[number] = self._missing[number]._replace(weight=weight)
        heaviest_first = sorted(self._missing, key=lambda number: -self._missing[number].weight)
        total = sum(missing.weight for missing in self._missing.values())
        with (
            parallelism.jobserver_for(self._options.jobs, plans, layout) as shared,
            reporter(len(self._missing), self._quiet, total) as progress,
        ):

            def work(number: int) -> None:
                began, label = time.time(), self._labels[number]
                progress.begin(label, self._missing[number].weight)
                self._attempt(number, lambda number, outcome: self._build(number, outcome, progress))
                state = self._outcomes[number].state
                if line is not None:
                    line.add(label, began, time.time(), state=state)
                progress.end(label, state)

            todo = {number: functools.partial(work, number) for number in heaviest_first}
            for _number in batch.in_parallel(todo, heaviest_first, shared, line):
                self._print_ended()

    def _build(self, number: int, outcome: Outcome, progress: Reporter) -> Outcome:
        builder, options, label = self._missing[number].builder, self._options, self._labels[number]
        entry = builder.build(
            on_progress=lambda done, total, title: progress.step(label, done, total, title),
            force=options.force,
            jobs=options.jobs,
            exact=True,
        )
        return self._keep(builder, entry, outcome)

    def _keep(self, builder: OpBuilder, entry: Entry, outcome: Outcome) -> Outcome:
        if self._options.out is not None:
            from opforge.builders.declaration.description import description_key
            from opforge.cache import layer
            from opforge.cache.current_store import current_store

            entry = layer.add(self._options.out, entry, description_key(builder.spec()), current_store().owners)
        # A forced build that equals the stored entry has the origin "cache" as well, and yet was built.
        state = "built" if self._options.force else {"built": "built", "cache": "cached"}.get(entry.origin, "prebuilt")
        return outcome._replace(state=state, path=entry.library, result=entry.key)

    def _attempt(self, number: int, action: Callable[[int, Outcome], Outcome | None]) -> None:
        """Runs `action` and keeps its outcome. An error becomes the outcome too."""
        began, op = time.monotonic(), self._selected[number]
        self._outcomes.setdefault(number, Outcome(op.name, str(op.target or ""), "failed", 0.0))
        try:
            outcome = action(number, self._outcomes[number])
        except OpIncompatibleError as error:
            state = "failed" if op.named else "skipped"
            reason = str(error) if op.named else "; ".join(error.reasons)
            outcome = self._outcomes[number]._replace(state=state, kind=type(error).__name__, reason=reason)
        except Exception as error:  # a builder's own code may raise anything, and must not stop the other ops
            outcome = self._outcomes[number]._replace(kind=type(error).__name__, reason=error_text(error))
        seconds = self._outcomes[number].seconds + time.monotonic() - began
        self._outcomes[number] = (outcome or self._outcomes[number])._replace(seconds=round(seconds, 3))
        if outcome is not None:
            self._ended.add(number)

    def _print_ended(self) -> None:
        """Prints the outcomes of the ops that have ended, in the order in which they were requested."""
        while self._printed < len(self._selected) and self._printed in self._ended:
            if self._print_lines:
                click.echo(sentence(self._outcomes[self._printed]))
            self._printed += 1


def sentence(outcome: Outcome) -> str:
    """Returns an outcome as one line."""
    op = f"{outcome.state} {outcome.name}" + (f" for {outcome.target}" if outcome.target else "")
    if outcome.state == "skipped":
        return f"{op}: {outcome.reason}"
    place = outcome.path or (f"{outcome.remote}, by {outcome.host}" if outcome.remote else "")
    return f"{op} in {outcome.seconds:.2f} s" + (f": {place}" if place else "")
