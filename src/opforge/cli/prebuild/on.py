"""`build-ops --on`: the same run, whose ops are built by the workers of an engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from opforge.builders.base import OpBuilder
from opforge.builders.load_op import gate_problems
from opforge.builders.run.timeline import Timeline
from opforge.cli.progress import reporter
from opforge.cli.selection import Selected
from opforge.errors import OpIncompatibleError
from opforge.remote.farm import api
from opforge.remote.farm.unit import Outcome, Unit, unit_of

from . import shards
from .run import BuildOptions, Run


class FarmRun(Run):
    """The ops of one command, each a unit that a worker builds."""

    def __init__(
        self,
        selected: Sequence[Selected],
        options: BuildOptions,
        engine: str,
        same_toolchain: bool,
        quiet: bool,
        print_lines: bool,
    ) -> None:
        super().__init__(selected, options, None, quiet, print_lines)
        self._engine, self._same_toolchain, self._remote = engine, same_toolchain, api.results_remote()
        self._units: dict[int, tuple[OpBuilder, Unit]] = {}

    @property
    def _has_work(self) -> bool:
        return bool(self._units)

    def _look_up(self, number: int, outcome: Outcome) -> Outcome | None:
        """Makes the unit of an op; the worker looks whether the remote has it. Returns None."""
        op, options = self._selected[number], self._options
        builder = op.builder(options.debug, options.sanitize, options.portable)
        self._outcomes[number] = outcome._replace(target=str(builder.target))
        spec = builder.spec()
        if not options.any_machine and (problems := gate_problems(builder, spec)):
            raise OpIncompatibleError(spec.name, str(spec.target), problems)
        unit = unit_of(builder, self._remote, op.name, force=options.force, jobs=options.jobs)
        self._units[number] = builder, unit
        return None

    def _build_missing(self, line: Timeline | None) -> None:
        weights = {number: shards.weight(self._selected[number]) for number in self._units}
        order = sorted(self._units, key=lambda number: -weights[number])
        units = [self._units[number][1] for number in order]
        with (
            closing(api.sent(self._engine, units, self._same_toolchain)) as outcomes,
            reporter(len(order), self._quiet, sum(weights.values())) as progress,
        ):
            for at, outcome in outcomes:
                number = order[at]
                self._outcomes[number] = outcome
                if self._options.out is not None and outcome.state != "failed":
                    self._ship(number, outcome)
                self._ended.add(number)
                progress.begin(self._labels[number], weights[number])
                progress.end(self._labels[number], self._outcomes[number].state)
                self._print_ended()

    def _ship(self, number: int, outcome: Outcome) -> None:
        """Fetches a result and copies it to the folder of --out."""
        builder = self._units[number][0]
        began = time.monotonic()
        try:
            kept = self._keep(builder, api.bring(builder, self._remote), outcome)
            self._outcomes[number] = outcome._replace(path=kept.path)
        except Exception as error:  # one that cannot be fetched must not stop the others
            seconds = round(outcome.seconds + time.monotonic() - began, 3)
            kind = type(error).__name__
            self._outcomes[number] = outcome._replace(state="failed", kind=kind, reason=str(error), seconds=seconds)
