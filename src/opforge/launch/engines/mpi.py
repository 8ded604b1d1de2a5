"""The engine MPI: mpirun of Open MPI, of MPICH (hydra), or of Intel MPI. The program itself need not use MPI."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

from opforge.errors import LauncherNotFoundError, SettingError
from opforge.launch.plan import Plan

DIALECTS = {"Open MPI": "openmpi", "OpenRTE": "openmpi", "Intel(R) MPI": "intel", "HYDRA": "hydra", "MPICH": "hydra"}
"""What `mpirun --version` says, and whose mpirun it is then."""
PACKAGES = "Install one: apt install openmpi-bin, apt install mpich, or Intel MPI"


def find() -> tuple[str, str]:
    """The mpirun on PATH and its dialect: openmpi, hydra or intel. Raises LauncherNotFoundError."""
    program = shutil.which("mpirun")
    if program is None:
        raise LauncherNotFoundError("mpi", "there is no mpirun on PATH", PACKAGES)
    try:
        asked = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
        said = asked.stdout + asked.stderr
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise LauncherNotFoundError("mpi", f"{program} --version failed: {problem}", PACKAGES) from problem
    for mark, dialect in DIALECTS.items():
        if mark in said:
            return program, dialect
    first = (said.strip().splitlines() or ["nothing"])[0]
    raise LauncherNotFoundError(
        "mpi", f"{program} --version says {first!r}, which is none of Open MPI, MPICH and Intel MPI", PACKAGES
    )


def engine_command(plan: Plan, program: str, dialect: str, tell: bool = False) -> list[str]:
    """The mpirun command: one part a host, so that hosts may differ in slots; ranks follow the hosts' order.

    MPI's own binding is off: each rank binds itself.
    """
    if ":" in plan.command:
        raise SettingError(
            "the program's argument", ":", "no argument that is a bare colon, which mpirun takes for itself"
        )
    argv = [program, *_together(plan, dialect)]
    for number, host in enumerate(plan.hosts):
        count = str(len(host.chosen))
        argv += [":"] if number else []
        if dialect == "openmpi":
            argv += ["-n", count, "--host", f"{host.name}:{count}", "--map-by", "slot", "--bind-to", "none"]
            # Open MPI hands nothing to other hosts by itself; the other dialects hand over all.
            argv += [word for name in plan.exports for word in ("-x", name)]
        else:
            argv += ["-n", count, *(["-host", host.name] if dialect == "intel" else [])]
        argv += plan.rank_command("openmpi" if dialect == "openmpi" else "hydra", host, tell)
    return argv


def _together(plan: Plan, dialect: str) -> list[str]:
    """What holds for all parts: how other hosts are reached, where the program runs, no binding of MPI's own."""
    if dialect == "openmpi":
        argv = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        argv += ["--mca", "plm_rsh_agent", shlex.join(plan.ssh)] if plan.remote else []
        return [*argv, "--wdir", plan.folder]
    if len(plan.ssh) > 1 and plan.remote:
        raise SettingError(
            "--ssh", shlex.join(plan.ssh), "one program without arguments, which is all that mpirun takes"
        )
    if dialect == "intel":
        reached = ["-bootstrap", "ssh", "-bootstrap-exec", plan.ssh[0]] if plan.remote else []
        return [*reached, "-genvall", "-genv", "I_MPI_PIN", "off", "-wdir", plan.folder]
    reached = ["-launcher", "ssh", "-launcher-exec", plan.ssh[0]] if plan.remote else []
    # MPICH takes one list for all parts, and fills it in order.
    hosts = ",".join(f"{host.name}:{len(host.chosen)}" for host in plan.hosts)
    return [*reached, "-genvall", "-bind-to", "none", "-wdir", plan.folder, "-hosts", hosts]
