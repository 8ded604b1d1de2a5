"""`build-ops`: builds ops ahead of time, one after another; one that fails stops no other."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from opforge.accelerator.target import Target
from opforge.errors import OpforgeError, OpIncompatibleError

from .guard import EXIT_CODES, FAILED, OK, Guarded, json_option
from .output import emit_json, is_terminal, show_table
from .progress import Reporter, reporter
from .selection import OWN, Selected, all_targets, mode_options, offered, select, target_option

PORTABLE = tuple(Target("cpu", (level,)) for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"))
"""What --portable builds for where no target is named: the best that runs is picked when an op is loaded."""


class Wishes(NamedTuple):
    """How the ops are to be built."""

    debug: bool
    sanitize: str
    jobs: int | None
    force: bool
    out: str | None
    """The layer to put them into."""
    portable: bool
    """For older systems too, and for other processors."""
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


@click.command("build-ops", cls=Guarded, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("ops", nargs=-1, metavar="[OP]...")
@target_option
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="How many compilers may run at once.")
@click.option("--force", is_flag=True, help="Build even what is stored.")
@click.option("--dry-run", is_flag=True, help="Show what would be built, and build nothing.")
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    help="Put the entries into this folder too, which OPFORGE_CACHE_LAYERS can then name, here or elsewhere.",
)
@click.option(
    "--portable",
    is_flag=True,
    help="Build with zig for glibc 2.28 and up; without --target for x86-64-v2, v3, v4 and aarch64.",
)
@mode_options
@click.option("--list", "list_only", is_flag=True, help="List the ops that can be named, and end.")
@json_option
def command(
    ops: Sequence[str],
    targets: Sequence[Target],
    levels: Sequence[str],
    jobs: int | None,
    force: bool,
    dry_run: bool,
    out: str | None,
    portable: bool,
    debug: bool,
    sanitize: str,
    list_only: bool,
    as_json: bool,
) -> None:
    """Build ops ahead of time, into the cache or into a folder to ship.

    OP is a builder's name, with or without "Builder", in any case; or one of your own, as package.module:Class.
    Without OP, every op that the accelerator in use and the CPU offer is built.
    """
    wanted = all_targets(targets, levels) or (PORTABLE if portable else ())
    if list_only:
        return list_ops(wanted, as_json)
    selected = select(ops, wanted)
    wishes = Wishes(debug, sanitize, jobs, force, out, portable, bool(wanted))
    if dry_run:
        from .dry_run import show_plans

        sys.exit(show_plans(selected, wishes, as_json))
    with reporter(len(selected), silent=as_json) as progress:
        outcomes = [_build(one, wishes, progress, say=not (as_json or is_terminal())) for one in selected]
    if as_json:
        emit_json({"ops": [one._asdict() for one in outcomes], "failed": _count(outcomes, "failed")})
    else:
        _summarise(outcomes, sanitize)
    nothing = bool(outcomes) and _count(outcomes, "skipped") == len(outcomes)
    sys.exit(FAILED if nothing or _count(outcomes, "failed") else OK)


def list_ops(targets: Sequence[Target], as_json: bool) -> None:
    """Print the names that can be given."""
    found = offered(targets)
    if as_json:
        emit_json([{"name": one.name, "accelerator": one.accelerator.name} for one in found])
    else:
        show_table(("OP", "ACCELERATOR"), [(one.name, one.accelerator.name) for one in found])
        click.echo(OWN, err=True)


def _build(one: Selected, wishes: Wishes, progress: Reporter, say: bool) -> Outcome:
    began = time.monotonic()
    progress.begin(one.name)
    outcome = Outcome(one.name, str(one.target or ""), "failed", 0.0)
    try:
        outcome = _obtain(one, wishes, progress, outcome)
    except OpIncompatibleError as error:
        state = "failed" if one.named else "skipped"
        reason = str(error) if one.named else "; ".join(error.reasons)
        outcome = outcome._replace(state=state, kind=type(error).__name__, reason=reason)
    except OpforgeError as error:
        outcome = outcome._replace(kind=type(error).__name__, reason=str(error))
    except Exception as error:  # a builder's own code may raise anything, and the other ops are to be built
        outcome = outcome._replace(kind=type(error).__name__, reason=f"{type(error).__name__}: {error}")
    outcome = outcome._replace(seconds=round(time.monotonic() - began, 3))
    progress.end(outcome.state)
    if say:
        click.echo(_sentence(outcome))
    return outcome


def _obtain(one: Selected, wishes: Wishes, progress: Reporter, outcome: Outcome) -> Outcome:
    builder = one.builder(wishes.debug, wishes.sanitize, wishes.portable)
    outcome = outcome._replace(target=str(builder.target))
    reasons = [] if wishes.any_machine else builder.objections()
    if reasons:
        raise OpIncompatibleError(one.name, outcome.target, reasons)
    entry = builder.obtain(on_progress=progress.step, force=wishes.force, jobs=wishes.jobs, exact=True)
    if wishes.out is not None:
        from opforge.cache import layer

        entry = layer.add(wishes.out, entry, builder.describe().key)
    # A forced build that comes out as before is told from a hit by nothing but the wish.
    state = "built" if wishes.force else {"built": "built", "cache": "cached"}.get(entry.origin, "prebuilt")
    return outcome._replace(state=state, path=entry.library, result=entry.result)


def _sentence(outcome: Outcome) -> str:
    about = f"{outcome.state} {outcome.name}" + (f" for {outcome.target}" if outcome.target else "")
    if outcome.state == "skipped":
        return f"{about}: {outcome.reason}"
    return f"{about} in {outcome.seconds:.2f} s" + (f": {outcome.path}" if outcome.path else "")


def _summarise(outcomes: Sequence[Outcome], sanitize: str) -> None:
    if not outcomes:
        click.echo("no op is offered here: nothing to build", err=True)
    elif is_terminal():
        show_table(
            ("OP", "TARGET", "STATE", "SECONDS", "PATH"),
            [(one.name, one.target, one.state, f"{one.seconds:.2f}", one.path or _first_line(one)) for one in outcomes],
            numbers=("SECONDS",),
            spare="PATH",
        )
    for one in outcomes:
        if one.state == "failed":
            click.echo(f"error: {one.name}: {one.reason}", err=True)
    if "address" in sanitize.split(",") and any(one.path for one in outcomes):
        advice = "run the program with LD_PRELOAD set to the compiler's libasan.so (g++ -print-file-name=libasan.so)"
        click.echo(f"note: {advice}", err=True)


def _first_line(outcome: Outcome) -> str:
    return outcome.reason.partition("\n")[0] if outcome.state == "skipped" else ""


def _count(outcomes: Sequence[Any], state: str) -> int:
    return sum(one.state == state for one in outcomes)
