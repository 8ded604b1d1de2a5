"""`opforge tune`: times the configs of an op, and keeps those that are faster on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from . import messages
from .completion import names as completed_names
from .guard import FAILED, OK, Guarded, json_option
from .output import counted, emit_json, heading, show_table
from .units import DURATION

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder
    from opforge.tuning.run import Done, Step
    from opforge.tuning.subjects import Subject

EXIT_CODES = "Exit codes: 0 success; 1 something failed; 2 wrong usage; 130 interrupted, with the results so far."


@click.command("tune", cls=Guarded, epilog=EXIT_CODES)
@click.argument("names", nargs=-1, required=True, metavar="OP|MODULE...", shell_complete=completed_names.ops)
@click.option("--shapes", metavar="FILE", default="", help="Time these sizes: JSON, a list of sizes by dtype.")
@click.option("--budget", metavar="TIME", type=DURATION, default=None, help="End after this time, such as 60s or 10m.")
@click.option("--again", is_flag=True, help="Also time configs that an earlier run has timed.")
@json_option
def command(names: Sequence[str], shapes: str, budget: float | None, again: bool, as_json: bool) -> None:
    """Time the configs that an op declares beside its defaults, by turns, and keep what is faster here.

    A config is taken if its result agrees with the op's reference and if the 95 % interval of its time lies below 0.98
    of the default's. If the machine is busy with other work, the default stays. The next load of the op uses the
    result, also in other processes. MODULE stands for all its builders with tunable configs.

    Results are written after each size: a stopped run continues where it ended. `opforge publish` sends a
    result to a store as tuned:OP, and machines with the same code, processor level and number of cores take it.

    \b
    Examples:
      opforge tune CPUAdam
      opforge tune my_package.builders --budget 10m
      opforge tune CPUAdam --shapes shapes.json --again
    """
    from opforge.cache.current_store import own_store, writable_store
    from opforge.tuning import run, subjects
    from opforge.tuning import shapes as shape_files

    wanted = shape_files.read(shapes) if shapes else None
    builders = [builder for name in names for builder in _builders(name)]
    root = writable_store(own_store()).layout.root
    limit, results = run.Budget(budget), list[dict[str, Any]]()
    failed = False
    for builder in builders:
        subject = subjects.load(builder)
        printer = _Printer(subject, as_json)
        path = run.run(subject, subjects.places(subject, wanted), root, limit, again, printer.begins, printer.ends)
        failed |= printer.end(path)
        results.append({"op": subject.op, "path": path, "rows": [done.row for done in printer.done if done.row]})
    if as_json:
        emit_json({"results": results})
    sys.exit(FAILED if failed else OK)


def _builders(name: str) -> list[OpBuilder]:
    """Returns the builders of a name: of an op, or all that can be tuned of a module. Raises click.UsageError."""
    from opforge.builders.base import OpBuilder
    from opforge.cli.selection import own_module, select
    from opforge.tuning.subjects import can_be_tuned

    if ":" in name or "." not in name:
        (selected, *_others) = select([name])
        return [selected.builder()]
    module = own_module(name)
    found = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, OpBuilder)]
    tunable = [kind for kind in dict.fromkeys(found) if can_be_tuned(kind)]
    if not tunable:
        raise click.UsageError(f"{name}: none of its builders declares something to tune.")
    return [kind() for kind in tunable]


class _Printer:
    """Prints what a run does."""

    def __init__(self, subject: Subject, is_silent: bool) -> None:
        self._subject, self._is_silent, self.done = subject, is_silent, list[Any]()

    def begins(self, step: Step) -> None:
        """Says what is timed, on a terminal."""
        if messages.shows_progress():
            click.echo(f"\r\x1b[K{step.number} of {step.total}: {self._subject.op}, {step.label}", nl=False, err=True)

    def ends(self, done: Done) -> None:
        """Takes note of a step."""
        self.done.append(done)

    def end(self, path: str) -> bool:
        """Prints the table of an op; returns whether a step had a problem."""
        if messages.shows_progress():
            click.echo("\r\x1b[K", nl=False, err=True)
        if not self._is_silent:
            self._show(path)
        return any(done.problem and done.problem != "the budget is spent" for done in self.done)

    def _show(self, path: str) -> None:
        wanted = self._subject.wanted
        machine = wanted.target if not wanted.cores else f"{wanted.target}, {counted(wanted.cores, 'core', 'cores')}"
        heading(f"{self._subject.op} for {machine}")
        rows = []
        for done in self.done:
            row = done.row
            if row is None:
                rows.append((done.step.label, "not timed", "", "", done.problem))
                continue
            config = " ".join(f"{name}={value}" for name, value in row["config"].items()) or "default"
            best = row if row["config"] or not row["others"] else row["others"][0]
            state = row["why"] or f"one of {1 + len(row['others'])} configs"
            rows.append(
                (
                    done.step.label,
                    config,
                    f"{best['ratio']:.3f}",
                    f"{best['low']:.3f} .. {best['high']:.3f}",
                    state if done.is_new else f"{state}, timed before",
                )
            )
        show_table(("TIMED", "TAKEN", "RATIO", "INTERVAL", "WHY"), rows, numbers=("RATIO",))
        if any(done.is_busy for done in self.done):
            click.echo("The machine is busy with other work: there the defaults stay. Run it again when it is idle.")
        if left := sum(done.row is None and done.problem == "the budget is spent" for done in self.done):
            click.echo(f"The budget is spent: {counted(left, 'size is', 'sizes are')} left. The same command goes on.")
        taken = sum(bool(done.row and done.row["config"]) for done in self.done)
        count = counted(len(self.done), "size", "sizes")
        click.echo(f"{taken} of {count} take another config than the default: {path}")
