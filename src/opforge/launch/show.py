"""The output of `--dry-run`: for each rank its host, cores, memory and command. No rank's program is started."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import Any

from opforge.errors import LaunchError

from .binding.rank_binding import binding_rows
from .hostfile import Host
from .plan import Plan
from .protocol import RANK_MARK
from .run import THIS_HOST, engine_starts, query_ranks

DECIDED_THERE = "decided there"
BY_SLURM = "chosen by Slurm"


def table(plan: Plan, offline: bool = False) -> list[dict[str, Any]]:
    """Returns one row a rank: rank, host, local_rank, cores, memory, threads, command.

    Remote hosts are contacted in the way that the job itself would use. With `offline` none is contacted.
    Raises LaunchError, LauncherNotFoundError, CoresError, SettingError.
    """
    command = shlex.join(plan.command)
    if not offline and plan.launcher != "torchrun" and (plan.remote or not plan.hosts):
        rows = _rows_from_ranks(plan)
    elif plan.remote and not offline:
        rows = query_ranks(plan)
    elif plan.hosts:
        rows = [row for host in plan.hosts for row in _rows(plan, host)]
    else:
        rows = _undecided_rows(Host.whole(BY_SLURM, plan.slots))
    numbered = bool(plan.hosts) or not offline
    return [{**row, "rank": number if numbered else "?", "command": command} for number, row in enumerate(rows)]


def commands(plan: Plan, offline: bool = False) -> list[dict[str, Any]]:
    """Returns the engines' commands, each with the host that runs it, and why its program is assumed, if it is.

    Raises LauncherNotFoundError, SettingError.
    """
    return [
        {
            "host": start.host.name if plan.hosts else THIS_HOST.name,
            "argv": start.argv,
            **({"assumed": start.assumed} if start.assumed else {}),
        }
        for start in engine_starts(plan, offline=offline)
    ]


def _rows(plan: Plan, host: Host) -> list[dict[str, Any]]:
    if not host.is_local:
        return _undecided_rows(host)
    bindings = binding_rows(host.slots, host.chosen, plan.bind_options, os.environ)
    return [{"host": host.name, "local_rank": number, **binding} for number, binding in enumerate(bindings)]


def _undecided_rows(host: Host) -> list[dict[str, Any]]:
    undecided = {"cores": DECIDED_THERE, "memory": DECIDED_THERE, "threads": DECIDED_THERE}
    return [{"host": host.name, "local_rank": number, **undecided} for number in range(len(host.chosen))]


def _rows_from_ranks(plan: Plan) -> list[dict[str, Any]]:
    """Lets the engine start `opforge.launch.rank` for each rank, which prints where it would run and ends."""
    (start,) = engine_starts(plan, dry_run=True)
    done = subprocess.run(start.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace")
    lines = [line for line in done.stdout.splitlines() if line.startswith(RANK_MARK)]
    rows = [json.loads(line.removeprefix(RANK_MARK)) for line in lines]
    if done.returncode or not rows:
        raise LaunchError(
            f"{os.path.basename(start.argv[0])} ended with status {done.returncode} during the dry run",
            "The output above shows the reason; with --offline no other host is contacted",
        )
    rows.sort(key=lambda row: int(row["rank"]))
    return rows
