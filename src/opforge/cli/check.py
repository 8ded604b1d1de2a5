"""`opforge check`: do the ops that are usable here work on this machine?"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from . import messages
from .completion import names as completed_names
from .guard import FAILED, OK, Guarded, json_option
from .output import counted, emit_json, heading, show_table

if TYPE_CHECKING:
    from opforge.check.checks import Checked
    from opforge.check.compiled import Outcome

COLUMNS = (
    "OP",
    "TARGET",
    "STATE",
    "TESTS",
    "ERROR",
    "EAGER'S",
    "LOAD ms",
    "FIRST CALL ms",
    "CALL us",
    "GB/s",
    "OF COPY",
    "REASON",
)
COMPILED = "compiled"
"""The argument that checks compiled graphs instead of ops."""
OP_SECONDS, STEP_SECONDS = 60.0, 600.0
EXIT_CODES = (
    "Exit codes: 0 success; 1 an op, or the accelerator, failed or crashed, or all that was named is unusable; 2 wrong"
    " usage."
)


@click.command("check", cls=Guarded, epilog=EXIT_CODES)
@click.argument("ops", nargs=-1, metavar="[OP|PACKAGE]...", shell_complete=completed_names.ops)
@click.option("--device", "devices", multiple=True, help="cpu, cuda, ...; by default the one in use, and the CPU.")
@click.option("--timeout", type=float, help="Seconds that one op may take (60), or a step of `compiled` (600).")
@click.option("--all", "is_all", is_flag=True, help="Check all ops, also if that takes longer than two minutes.")
@click.option("--list", "as_list", is_flag=True, help="Check nothing: show the last check of each op, and its device.")
@json_option
def command(
    ops: Sequence[str], devices: Sequence[str], timeout: float | None, is_all: bool, as_list: bool, as_json: bool
) -> None:
    """Check every op that is usable here: ours, those of other packages, and installed kernel packages.

    OP is a builder's name, or package.module:Class of your own. PACKAGE is a Python package that offers ops, or a
    kernel package, ORG/NAME. Each op is loaded and called in a process of its own, so that a crash is one line of the
    table. Its results are compared with a reference in float64, torch.library.opcheck looks at its schema and fake
    kernel, and its speed is measured beside a copy of as many bytes. The accelerator is tested by the contract of
    accelerators. Ops that are not built yet are built first; the rest takes less than two minutes, and an op for which
    no time is left is skipped, unless there is --all.

    With `compiled` alone no op is checked. The command tests whether compiled graphs can be shared with the installed
    torch: another process must find them without a compiler, and must notice edited ops and failed guards. If a torch
    that opforge does not know passes, the result is recorded, and opforge.compiled works with that torch.

    \b
    Examples:
      opforge check
      opforge check CPUAdam Quantizer
      opforge check my_package.ops:MyBuilder
      opforge check --device cuda --all --json > check.json
      opforge check --list acme/relu
      opforge check compiled
    """
    if timeout is not None and not timeout > 0:  # nan too
        raise click.BadParameter(f"{timeout:g} is not a number of seconds above 0.", param_hint="--timeout")
    if COMPILED in ops:
        if list(ops) != [COMPILED] or devices or as_list or is_all:
            raise click.UsageError(f"{COMPILED!r} is checked alone: opforge check {COMPILED} [--timeout N] [--json]")
        _check_compiled(timeout or STEP_SECONDS, as_json)
        return
    if as_list:
        _list(ops, devices, as_json)
        return
    from opforge.check import checks

    ended = _progress if messages.shows_progress() else lambda _row: None
    with _names_explained():
        results = checks.run(ops, devices, timeout or OP_SECONDS, ended, _own_classes(ops), not is_all)
    if as_json:
        from opforge.bench import machine

        # A driver that does not work must not be asked here: what was found would be lost.
        names = [row.device for row in results if row.device and row.accelerator != "cpu"]
        facts = {**machine.describe(), "device": next(iter(names), "")}
        emit_json({"machine": facts, "results": [row._asdict() for row in results]})
    else:
        _print(results)
    is_unusable = bool(ops) and all(row.state == "unusable" for row in results)
    sys.exit(FAILED if is_unusable or any(row.state in checks.BAD for row in results) else OK)


def _own_classes(ops: Sequence[str]) -> dict[str, Any]:
    """Returns the classes of the names that are package.module:Class. Raises click.UsageError, BuilderError."""
    from .selection import own_class

    return {name: own_class(name) for name in ops if ":" in name}


@contextlib.contextmanager
def _names_explained() -> Iterator[None]:
    """Turns the error of a name that no package offers into that of wrong usage, with how to name a class."""
    from opforge.errors import OpNotFoundError

    from .selection import unknown_name

    try:
        yield
    except OpNotFoundError as error:
        raise click.UsageError(unknown_name(error.name, list(error.offered))) from error


def _check_compiled(timeout: float, as_json: bool) -> None:
    """Tries compiled graphs with the installed torch, and ends the command."""
    from opforge.check import compiled
    from opforge.torch_internals import inductor

    def progress(outcome: Outcome) -> None:
        if messages.shows_progress():
            click.echo(f"{outcome.step}: {outcome.state}", err=True)

    version, outcomes = compiled.run(timeout, progress)
    has_passed = all(outcome.state == "ok" for outcome in outcomes)
    if as_json:
        names = {"torch": version, "known": inductor.is_known(version), "passed": has_passed}
        emit_json({**names, "steps": [outcome._asdict() for outcome in outcomes]})
    else:
        show_table(("STEP", "STATE", "REASON"), [outcome[:3] for outcome in outcomes], optional="REASON")
        click.echo("\n" + _verdict(version, has_passed, inductor.version_problem(version)))
    sys.exit(OK if has_passed else FAILED)


def _verdict(version: str, has_passed: bool, problem: str) -> str:
    if not has_passed:
        return f"torch {version} has not passed."
    if problem:
        return f"torch {version} has passed, but nothing can be remembered on this machine."
    return f"torch {version} has passed: opforge.compiled uses it."


def _progress(row: Checked) -> None:
    click.echo(f"{row.name} on {row.accelerator or row.target}: {row.state}", err=True)


def _print(results: Sequence[Checked]) -> None:
    rows = [
        (
            row.name,
            row.target,
            row.state,
            row.tests or "",
            *(
                _number(value)
                for value in (
                    row.error_units,
                    row.eager_units,
                    row.load_ms,
                    row.first_ms,
                    row.us,
                    row.gb_per_s,
                    row.of_copy,
                )
            ),
            (row.reason or row.note).partition("\n")[0],
        )
        for row in results
    ]
    show_table(COLUMNS, rows, numbers=COLUMNS[3:11], optional="REASON")
    for row in results:
        if row.reason and row.state not in ("ok", "unchecked"):
            heading(
                f"{row.name} on {row.accelerator or row.target}: {row.state}" + (f" ({row.stage})" if row.stage else "")
            )
            click.echo(row.reason + (f"\nlast printed: {row.printed}" if row.printed else ""))
    if promising := [row for row in results if row.promises and row.state == "ok"]:
        heading("What they promise, as was tried")
        for row in promising:
            click.echo(f"{row.name} on {row.accelerator or row.target}: {', '.join(row.promises)}")
    states = Counter(row.state for row in results)
    heading(", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "nothing to check")
    click.echo("unchecked: the op was loaded and called, and it has no reference.")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _list(ops: Sequence[str], devices: Sequence[str], as_json: bool) -> None:
    """Prints which ops were ever checked, on which device."""
    from opforge.check import checks

    with _names_explained():
        found = checks.remembered(ops, devices, _own_classes(ops))
    if as_json:
        names = ("name", "accelerator", "target", "package")
        emit_json([{**{name: getattr(row, name) for name in names}, **last} for row, last in found])
        return
    rows = [
        (
            row.name,
            row.target or row.accelerator,
            last.get("state", "never"),
            last.get("device", ""),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(last["at"])) if last else "",
            last.get("by", ""),
            row.package or "opforge",
        )
        for row, last in found
    ]
    show_table(("OP", "TARGET", "CHECKED", "ON", "AT", "BY OPFORGE", "PACKAGE"), rows)
    number = sum(1 for _row, last in found if last)
    click.echo(f"\n{counted(number, 'op was checked as it is', 'ops were checked as they are')} now.")
