"""`build-ops`: builds ops ahead of time, several at once; one that fails stops no other."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

import click

from opforge.accelerator.target import Target
from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.output import emit_json, is_terminal, show_table
from opforge.cli.selection import OWN, all_targets, mode_options, offered, select, target_option

from .run import Outcome, Run, Wishes

PORTABLE = tuple(Target("cpu", (level,)) for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"))
"""What --portable builds for where no target is named: the best that runs is picked when an op is loaded."""


@click.command("build-ops", cls=Guarded, context_settings={"help_option_names": ["-h", "--help"]})
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
@click.option(
    "--trace",
    type=click.File("w", lazy=False),
    metavar="FILE",
    help="Write what ran when to this file, for chrome://tracing and ui.perfetto.dev.",
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
    trace: TextIO | None,
    debug: bool,
    sanitize: str,
    list_only: bool,
    as_json: bool,
) -> None:
    """Build ops ahead of time, into the cache or into a folder to ship.

    OP is a builder's name, with or without "Builder", in any case; or one of your own, as package.module:Class.
    Without OP, every op that the accelerator in use and the CPU offer is built.

    \b
    Examples:
      build-ops CPUAdam FusedAdam
      build-ops my_package.ops:ReluBuilder --cpu-level x86-64-v3 --out prebuilt/
      build-ops FusedAdam --target cuda:sm_80+sm_90+ptx --dry-run
    """
    wanted = all_targets(targets, levels) or (PORTABLE if portable else ())
    if list_only:
        return list_ops(wanted, as_json)
    selected = select(ops, wanted)
    wishes = Wishes(debug, sanitize, portable, jobs, force, out, bool(wanted))
    if dry_run:
        from .dry_run import show_plans

        sys.exit(show_plans(selected, wishes, as_json))
    began = time.monotonic()
    run = Run(selected, wishes, trace, silent=as_json, say=not (as_json or is_terminal()))
    outcomes = run.build()
    if as_json:
        emit_json({"ops": [one._asdict() for one in outcomes], "failed": _count(outcomes, "failed")})
    else:
        _summarise(outcomes, sanitize, time.monotonic() - began)
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


def _summarise(outcomes: Sequence[Outcome], sanitize: str, seconds: float) -> None:
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
    if len(outcomes) > 1:
        states = [f"{_count(outcomes, state)} {state}" for state in dict.fromkeys(one.state for one in outcomes)]
        click.echo(f"{', '.join(states)} in {seconds:.1f} s", err=True)
    if "address" in sanitize.split(",") and any(one.path for one in outcomes):
        advice = "run the program with LD_PRELOAD set to the compiler's libasan.so (g++ -print-file-name=libasan.so)"
        click.echo(f"note: {advice}", err=True)


def _first_line(outcome: Outcome) -> str:
    return outcome.reason.partition("\n")[0] if outcome.state == "skipped" else ""


def _count(outcomes: Sequence[Any], state: str) -> int:
    return sum(one.state == state for one in outcomes)
