"""`opforge launch`: processes bound to cores and memory, on torchrun, MPI or Slurm."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opforge.errors import LaunchError

from .guard import Guarded, json_option
from .output import emit_json, show_table

if TYPE_CHECKING:
    from types import FrameType

    from opforge.launch.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])


def spelt(name: str, *others: str, **how: Any) -> Callable[[F], F]:
    """An option with dashes that may be typed with underscores too."""
    both = dict.fromkeys(one for word in (name, *others) for one in (word, f"--{word[2:].replace('-', '_')}"))
    return click.option(*both, name[2:].replace("-", "_"), **how)


@click.command("launch", cls=Guarded, context_settings={"allow_interspersed_args": False})
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@spelt("--launcher", default="torchrun", show_default=True, metavar="NAME", help="The engine: torchrun, mpi or slurm.")
@spelt(
    "--num-accelerators",
    "--num-gpus",
    type=click.IntRange(min=1),
    help="Processes on each host. Without it: one a NUMA node on a CPU, one a device elsewhere; a hostfile's slots.",
)
@spelt("--bind-cores-to-rank", is_flag=True, help="Give each process whole cores and the memory near them.")
@spelt("--bind-core-list", default="", metavar="LIST", help="Bind to these cores only, such as 0-51,56-107.")
@spelt(
    "--smt",
    type=click.Choice(["keep", "skip"]),
    default="keep",
    show_default=True,
    help="Bind to all hardware threads of a core, or to the first only.",
)
@spelt("--hostfile", type=click.Path(), default="", help="The hosts: lines of `name slots=N`.")
@spelt("--include", default="", metavar="HOSTS", help="Only these hosts and slots, such as worker-1@worker-2:0,2.")
@spelt("--exclude", default="", metavar="HOSTS", help="All hosts and slots but these.")
@spelt("--master-addr", default="", help="Where rank 0 is reached. Without it: the first host.")
@spelt("--master-port", type=click.IntRange(1, 65535), help="Without it: 29500, or a free one on one host.")
@spelt("--ssh", default="ssh", show_default=True, metavar="COMMAND", help="What starts a command on another host.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, as for `python -m`.")
@spelt("--no-python", is_flag=True, help="SCRIPT is a program, started as it is.")
@spelt("--dry-run", is_flag=True, help="Show where each process would run, and start none.")
@spelt("--offline", is_flag=True, help="With --dry-run: ask no other host.")
@json_option
def command(script: str, arguments: tuple[str, ...], dry_run: bool, offline: bool, as_json: bool, **typed: Any) -> None:
    """Run SCRIPT in several processes, here or on the hosts of a file, each bound to cores of its own.

    All that follows SCRIPT is passed on to it. When one process fails, all are ended; --json is for --dry-run.

    \b
    Examples:
      opforge launch --num-accelerators 2 --bind-cores-to-rank train.py --lr 0.1
      opforge launch --hostfile hosts --dry-run train.py
    """
    from opforge.launch.plan import Options, make_plan
    from opforge.launch.run import run

    if not sys.platform.startswith("linux"):
        problem = f"binding is by Linux's system calls, and this is {sys.platform}"
        raise LaunchError(problem, "Use torchrun itself")
    if as_json and not dry_run:
        raise click.UsageError("--json goes with --dry-run")
    if offline and not dry_run:
        raise click.UsageError("--offline goes with --dry-run")
    bind, listed = typed.pop("bind_cores_to_rank"), typed.pop("bind_core_list")
    options = Options(program=(script, *arguments), bind=bind, core_list=listed, **typed)
    plan = make_plan(options, os.environ)
    if dry_run:
        show(plan, offline, as_json)
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, _stop)
    run(plan)


def show(plan: Plan, offline: bool, as_json: bool) -> None:
    """Print the table of ranks, and the engines' commands."""
    from opforge.launch.show import commands, table

    ranks, engines = table(plan, offline), commands(plan)
    if as_json:
        emit_json({"launcher": plan.launcher, "ranks": ranks, "engines": engines})
        return
    names = ("rank", "host", "cores", "memory", "threads", "command")
    rows = [[row[name] for name in names] for row in ranks]
    show_table([name.upper() for name in names], rows, numbers=("RANK", "THREADS"), optional="COMMAND")
    for one in engines:
        click.echo(f"{one['host']}: {shlex.join(one['argv'])}", err=True)


def _stop(number: int, frame: FrameType | None) -> None:
    """End the job as Ctrl-C does, and leave with the signal's status."""
    raise SystemExit(128 + number)
