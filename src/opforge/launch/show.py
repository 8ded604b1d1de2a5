"""What `--dry-run` shows: for each rank its host, cores, memory and command. No rank's program is started."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import Any

from opforge.errors import LaunchError

from .binding.rank_binding import describe
from .hostfile import Host
from .plan import Plan, is_here
from .rank import TOLD
from .run import HERE, ask, engines

DECIDED_THERE = "decided there"
BY_SLURM = "chosen by Slurm"


def table(plan: Plan, offline: bool = False) -> list[dict[str, Any]]:
    """One row a rank: rank, host, local_rank, cores, memory, threads, command.

    Remote hosts are asked over the channel that the job itself would use; `offline` asks none of them.
    Raises LaunchError, LauncherNotFoundError, CoresError, SettingError.
    """
    command = shlex.join(plan.command)
    if not offline and plan.launcher != "torchrun" and (plan.remote or not plan.hosts):
        rows = _told_by_ranks(plan)
    elif plan.remote and not offline:
        rows = ask(plan)
    elif plan.hosts:
        rows = [row for host in plan.hosts for row in _rows(plan, host)]
    else:
        rows = _undecided(Host.whole(BY_SLURM, plan.slots))
    numbered = [{**row, "rank": number} for number, row in enumerate(rows)]
    return [{**row, "rank": row["rank"] if plan.hosts or not offline else "?", "command": command} for row in numbered]


def commands(plan: Plan) -> list[dict[str, Any]]:
    """The engines' commands, and the host on which each is started. Raises LauncherNotFoundError, SettingError."""
    return [{"host": host.name if plan.hosts else HERE.name, "argv": argv} for host, argv, _ in engines(plan)]


def _rows(plan: Plan, host: Host) -> list[dict[str, Any]]:
    if not is_here(host):
        return _undecided(host)
    told = describe(host.slots, host.chosen, plan.wishes, os.environ)
    return [{"host": host.name, "local_rank": number, **row} for number, row in enumerate(told)]


def _undecided(host: Host) -> list[dict[str, Any]]:
    there = {"cores": DECIDED_THERE, "memory": DECIDED_THERE, "threads": DECIDED_THERE}
    return [{"host": host.name, "local_rank": number, **there} for number in range(len(host.chosen))]


def _told_by_ranks(plan: Plan) -> list[dict[str, Any]]:
    """Let the engine start the ranks' shims, which say where they would run, and end."""
    ((_, argv, _),) = engines(plan, tell=True)
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace")
    rows = [json.loads(line.partition(TOLD)[2]) for line in done.stdout.splitlines() if line.startswith(TOLD)]
    if done.returncode or not rows:
        raise LaunchError(
            f"{os.path.basename(argv[0])} ended with status {done.returncode} when the hosts were asked",
            "The output above says why; --offline asks none",
        )
    rows.sort(key=lambda row: int(row["rank"]))
    return rows
