"""`build-ops`: builds ops ahead of time, several at once. One that fails does not stop the others."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import click

from opforge.accelerator.target import Target
from opforge.cli import messages
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, FolderPath, Guarded, json_option
from opforge.cli.output import emit_json, is_terminal, show_table
from opforge.cli.selection import OWN_CLASS, Selected, all_targets, mode_options, offered, select, target_option
from opforge.remote.farm.unit import Outcome

from . import shards
from .report import check_folder, write_report
from .run import BuildOptions, Run

PORTABLE = tuple(Target("cpu", (level,)) for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"))
"""The targets of --portable without --target. Loading an op picks the best of them that the machine can run."""


@click.command("build-ops", cls=Guarded, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("ops", nargs=-1, metavar="[OP]...", shell_complete=completed_names.ops)
@target_option
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Run at most this many compilers at once.")
@click.option("--force", is_flag=True, help="Build ops that are in the cache too.")
@click.option("--dry-run", is_flag=True, help="Show what would be built, and build nothing.")
@click.option(
    "--out",
    type=FolderPath(),
    help="Also copy the entries to this folder, to be named in OPFORGE_CACHE_LAYERS on any machine.",
)
@click.option(
    "--portable",
    is_flag=True,
    help="Build with zig, for glibc 2.28 and newer. Without --target: for x86-64-v2, v3, v4 and aarch64.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, writable=True),
    callback=check_folder,
    metavar="FILE",
    help="Write a trace of the run to this file, for chrome://tracing and ui.perfetto.dev.",
)
@click.option(
    "--shard",
    callback=shards.check,
    metavar="I/N|auto",
    help="Build the I-th of N shares of the ops. auto: by the variables of Slurm, Kubernetes, CI or opforge launch.",
)
@click.option(
    "--on",
    "engine",
    metavar="URL",
    help="Build on the workers of a Dask scheduler, such as tcp://host:8786, or of the executor that module:function"
    " returns. Results go to the remote of OPFORGE_REMOTES that has push=1.",
)
@click.option(
    "--same-toolchain",
    is_flag=True,
    help="With --on: fail if compilers, torch or the C library differ between workers.",
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, writable=True),
    callback=check_folder,
    metavar="FILE",
    help="Write the outcome of each op to this file: host, seconds, bytes, memory, reason.",
)
@mode_options
@click.option("--list", "list_only", is_flag=True, help="List the ops that can be named, and exit.")
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
    trace: str | None,
    shard: str | None,
    engine: str | None,
    same_toolchain: bool,
    report_file: str | None,
    debug: bool,
    sanitize: str,
    list_only: bool,
    as_json: bool,
) -> None:
    """Build ops ahead of time, into the cache or into a folder to ship.

    OP is a builder's name, in any letter case, with or without "Builder". A class of your own is named by
    package.module:Class. Without OP, every op that the accelerator in use and the CPU offer is built.

    \b
    Examples:
      build-ops CPUAdam FusedAdam
      build-ops my_package.ops:ReluBuilder --cpu-level x86-64-v3 --out prebuilt/
      build-ops FusedAdam --target cuda:sm_80+sm_90+ptx --dry-run
      build-ops --shard auto --report report.json
      build-ops --on tcp://scheduler:8786 --report report.json
    """
    requested = all_targets(targets, levels) or (PORTABLE if portable else ())
    if list_only:
        return list_ops(requested, as_json)
    part = shards.automatic(os.environ) if shard == shards.AUTO else shards.parsed(shard)
    selected = _selected(ops, requested, part, warns=bool(targets or levels))
    _check_engine(engine, same_toolchain, trace)
    options = BuildOptions(debug, sanitize, portable, jobs, force, out, any_machine=bool(requested))
    if dry_run:
        from .dry_run import show_plans

        sys.exit(show_plans(selected, options, as_json))
    began = time.monotonic()
    run = _run(selected, options, engine, same_toolchain, trace, as_json)
    outcomes = [outcome.measured() for outcome in run.build()]
    if report_file:
        write_report(outcomes, part, time.monotonic() - began, report_file)
    if as_json:
        emit_json({"ops": [outcome._asdict() for outcome in outcomes], "failed": _count(outcomes, "failed")})
    else:
        _print_summary(outcomes, sanitize, time.monotonic() - began, part)
    all_skipped = not shard and bool(outcomes) and _count(outcomes, "skipped") == len(outcomes)
    sys.exit(FAILED if all_skipped or _count(outcomes, "failed") else OK)


def _selected(
    ops: Sequence[str], requested: Sequence[Target], part: shards.Shard | None, warns: bool
) -> Sequence[Selected]:
    """Returns the ops to build, or this share of them; `warns` of targets that none is for. Raises UsageError."""
    selected = select(ops, requested)
    for target in requested if warns else ():
        if target not in {op.target for op in selected}:
            messages.show("warning", f"none of these ops is for {target}: nothing is built for it")
    return shards.share(selected, part) if part else selected


def _run(
    selected: Sequence[Selected],
    options: BuildOptions,
    engine: str | None,
    same_toolchain: bool,
    trace: str | None,
    as_json: bool,
) -> Run:
    """Returns the run that builds the ops: on this machine, or on an engine's workers."""
    print_lines = not (as_json or is_terminal())
    if engine is None:
        return Run(selected, options, trace, quiet=as_json, print_lines=print_lines)
    from .on import FarmRun

    return FarmRun(selected, options, engine, same_toolchain, quiet=as_json, print_lines=print_lines)


def _check_engine(engine: str | None, same_toolchain: bool, trace: str | None) -> None:
    """Raises UsageError for options that --on excludes or requires."""
    if same_toolchain and engine is None:
        raise click.UsageError("--same-toolchain compares the workers of --on URL, and no --on was typed.")
    if engine is not None and trace:
        raise click.UsageError("--trace records compilers on this machine, and --on URL starts none here.")


def list_ops(targets: Sequence[Target], as_json: bool) -> None:
    """Prints the ops that can be named."""
    offers = offered(targets)
    if as_json:
        emit_json([{"name": offer.name, "accelerator": offer.accelerator.name} for offer in offers])
    else:
        show_table(("OP", "ACCELERATOR"), [(offer.name, offer.accelerator.name) for offer in offers])
        click.echo(OWN_CLASS, err=True)


def _print_summary(outcomes: Sequence[Outcome], sanitize: str, seconds: float, part: shards.Shard | None) -> None:
    if part and not outcomes:
        click.echo(f"shard {part.number}/{part.total} has no op: nothing to build", err=True)
    elif not outcomes:
        click.echo("no op is offered here: nothing to build", err=True)
    elif is_terminal():
        rows = []
        for outcome in outcomes:
            path = outcome.path or outcome.remote
            path = path or (outcome.reason.partition("\n")[0] if outcome.state == "skipped" else "")
            rows.append((outcome.name, outcome.target, outcome.state, f"{outcome.seconds:.2f}", path))
        show_table(("OP", "TARGET", "STATE", "SECONDS", "PATH"), rows, numbers=("SECONDS",), optional="PATH")
    for outcome in outcomes:
        if outcome.state == "failed":
            named = f"{outcome.name}: "
            messages.show_error(outcome.reason, "" if outcome.reason.startswith(named) else named)
    if len(outcomes) > 1:
        states = dict.fromkeys(outcome.state for outcome in outcomes)
        counts = ", ".join(f"{_count(outcomes, state)} {state}" for state in states)
        click.echo(f"{counts} in {seconds:.1f} s", err=True)
    if "address" in sanitize.split(",") and any(outcome.path for outcome in outcomes):
        advice = "run the program with LD_PRELOAD set to the compiler's libasan.so (g++ -print-file-name=libasan.so)"
        messages.show("note", advice)


def _count(outcomes: Sequence[Outcome], state: str) -> int:
    return sum(outcome.state == state for outcome in outcomes)
