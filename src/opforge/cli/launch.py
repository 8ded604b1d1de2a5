"""`opforge launch`: runs processes bound to cores and memory, through torchrun, MPI or Slurm."""

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


def option(name: str, *aliases: str, **attributes: Any) -> Callable[[F], F]:
    """Returns an option that may be typed with dashes or with underscores."""
    spellings = [spelling for word in (name, *aliases) for spelling in (word, f"--{word[2:].replace('-', '_')}")]
    return click.option(*dict.fromkeys(spellings), name[2:].replace("-", "_"), **attributes)


@click.command("launch", cls=Guarded, context_settings={"allow_interspersed_args": False})
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@option("--launcher", default="torchrun", show_default=True, metavar="NAME", help="The engine: torchrun, mpi or slurm.")
@option(
    "--num-accelerators",
    "--num-gpus",
    type=click.IntRange(min=1),
    help="Processes on each host. Default: the slots of the hostfile; without one, the devices (on a CPU: NUMA nodes).",
)
@option("--bind-cores-to-rank", is_flag=True, help="Bind each process to whole cores and the memory near them.")
@option("--bind-core-list", default="", metavar="LIST", help="Bind to these cores only, such as 0-51,56-107.")
@option(
    "--smt",
    type=click.Choice(["keep", "skip"]),
    default="keep",
    show_default=True,
    help="Bind to all hardware threads of each core (keep), or to the first only (skip).",
)
@option("--hostfile", type=click.Path(), default="", help="A file with a line `name slots=N` for each host.")
@option("--include", default="", metavar="HOSTS", help="Only these hosts and slots, such as worker-1@worker-2:0,2.")
@option("--exclude", default="", metavar="HOSTS", help="All hosts and slots but these.")
@option("--master-addr", default="", help="The address of rank 0. Default: the first host.")
@option("--master-port", type=click.IntRange(1, 65535), help="Default: 29500, or a free port on one host.")
@option("--ssh", default="ssh", show_default=True, metavar="COMMAND", help="The command that reaches another host.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, as for `python -m`.")
@option("--no-python", is_flag=True, help="SCRIPT is a program, started without Python.")
@option("--dry-run", is_flag=True, help="Show where each process would run, and start none.")
@option("--offline", is_flag=True, help="With --dry-run: contact no other host.")
@json_option
def command(
    script: str, arguments: tuple[str, ...], dry_run: bool, offline: bool, as_json: bool, **options: Any
) -> None:
    """Run SCRIPT in several processes, here or on the hosts of a file, each bound to its own cores.

    Everything after SCRIPT is passed to it. If one process fails, all are ended. --json requires --dry-run.

    \b
    Examples:
      opforge launch --num-accelerators 2 --bind-cores-to-rank train.py --lr 0.1
      opforge launch --hostfile hosts --dry-run train.py
    """
    from opforge.accelerator.select import get_accelerator
    from opforge.launch.planner import Options, make_plan, program_problem
    from opforge.launch.run import run

    if not sys.platform.startswith("linux"):
        problem = f"{sys.platform} is not supported: binding uses Linux system calls"
        raise LaunchError(problem, "Use torchrun directly")
    if as_json and not dry_run:
        raise click.UsageError("--json requires --dry-run.")
    if offline and not dry_run:
        raise click.UsageError("--offline requires --dry-run.")
    bind, core_list = options.pop("bind_cores_to_rank"), options.pop("bind_core_list")
    choices = Options(program=(script, *arguments), bind=bind, core_list=core_list, **options)
    plan = make_plan(choices, os.environ, get_accelerator)
    if dry_run:
        show(plan, offline, as_json)
        return
    is_here = not plan.hosts or any(host.is_local for host in plan.hosts)
    if is_here and (problem := program_problem(choices)):
        raise LaunchError(problem, "Correct the path; use -m for a module, --no-python for a program")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and that must stay so
            signal.signal(number, _stop)
    run(plan)


def show(plan: Plan, offline: bool, as_json: bool) -> None:
    """Prints the table of ranks, and the engines' commands."""
    from opforge.launch.show import commands, table

    ranks, engines = table(plan, offline), commands(plan, offline)
    if as_json:
        emit_json({"launcher": plan.launcher, "ranks": ranks, "engines": engines})
        return
    fields = ("rank", "host", "cores", "memory", "threads", "command")
    rows = [[rank[field] for field in fields] for rank in ranks]
    show_table([field.upper() for field in fields], rows, numbers=("RANK", "THREADS"), optional="COMMAND")
    for engine in engines:
        click.echo(f"{engine['host']}: {shlex.join(engine['argv'])}", err=True)
        if "assumed" in engine:
            click.echo(f"note: {engine['assumed']}", err=True)


def _stop(number: int, frame: FrameType | None) -> None:
    """Ends the job as Ctrl-C does, with the signal's exit status."""
    raise SystemExit(128 + number)
