"""The engine Slurm: one srun, which uses the current allocation or makes its own."""

from __future__ import annotations

import shutil

from opforge.errors import LauncherNotFoundError, SettingError
from opforge.launch.plan import Plan


def find() -> str:
    """Returns the path of srun. Raises LauncherNotFoundError."""
    program = shutil.which("srun")
    if program is None:
        raise LauncherNotFoundError("slurm", "there is no srun on PATH", "Install it: apt install slurm-client")
    return program


def engine_command(plan: Plan, program: str, dry_run: bool = False) -> list[str]:
    """Returns the srun command. Without a hostfile Slurm uses all hosts of the allocation. Raises SettingError."""
    argv = [program]
    host = None
    count = plan.slots
    if plan.hosts:
        host, count = plan.hosts[0], len(plan.hosts[0].chosen)
        for other in plan.hosts:
            if (other.slots, other.chosen) != (host.slots, host.chosen):
                expected = f"the same slots on each host, as srun requires; {host.name} differs"
                raise SettingError("--hostfile", other.name, expected)
        addresses = [host.address for host in plan.hosts]
        argv += ["--nodes", str(len(addresses)), "--ntasks", str(count * len(addresses))]
        argv += ["--nodelist", ",".join(addresses)]
    argv += ["--ntasks-per-node", str(count), "--cpu-bind=none", "--mem-bind=none", "--kill-on-bad-exit=1"]
    return [*argv, "--chdir", plan.folder, *plan.rank_command("slurm", host, dry_run)]
