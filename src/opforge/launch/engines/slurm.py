"""The engine Slurm: one srun, inside an allocation or making its own."""

from __future__ import annotations

import shutil

from opforge.errors import LauncherNotFoundError, SettingError
from opforge.launch.plan import Plan


def find() -> str:
    """The srun on PATH. Raises LauncherNotFoundError."""
    program = shutil.which("srun")
    if program is None:
        raise LauncherNotFoundError("slurm", "there is no srun on PATH", "Install it: apt install slurm-client")
    return program


def engine_command(plan: Plan, program: str, tell: bool = False) -> list[str]:
    """The srun command. Without a hostfile Slurm chooses the hosts: all of the allocation. Raises SettingError."""
    argv = [program]
    host = None
    count = plan.slots
    if plan.hosts:
        host, count = plan.hosts[0], len(plan.hosts[0].chosen)
        for other in plan.hosts:
            if (other.slots, other.chosen) != (host.slots, host.chosen):
                raise SettingError(
                    "--hostfile",
                    other.name,
                    f"the same slots on each host, which is what srun takes; {host.name} differs",
                )
        names = [one.address for one in plan.hosts]
        argv += ["--nodes", str(len(names)), "--ntasks", str(count * len(names)), "--nodelist", ",".join(names)]
    argv += ["--ntasks-per-node", str(count), "--cpu-bind=none", "--mem-bind=none", "--kill-on-bad-exit=1"]
    return [*argv, "--chdir", plan.folder, *plan.rank_command("slurm", host, tell)]
