"""The engine MPI: mpirun of Open MPI, of MPICH (hydra), or of Intel MPI. The program itself need not use MPI."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

from opforge.errors import LauncherNotFoundError, SettingError
from opforge.launch.plan import Plan

DIALECTS = {"Open MPI": "openmpi", "OpenRTE": "openmpi", "Intel(R) MPI": "intel", "HYDRA": "hydra", "MPICH": "hydra"}
"""A word in the output of `mpirun --version`, and the dialect of such an mpirun."""
NAMES = {"openmpi": "Open MPI", "intel": "Intel MPI", "hydra": "MPICH"}
"""Dialect -> whose it is."""
ACCEPTED = {"openmpi": ("openmpi",), "mpich": ("hydra", "intel"), "impi": ("intel", "hydra")}
"""A launcher's name -> the dialects that it stands for, the likeliest first. Others stand for any mpirun."""
ADVICE = "Install one: apt install openmpi-bin, apt install mpich, or Intel MPI"
VERSION_SECONDS = 30


def find(launcher: str = "mpi") -> tuple[str, str]:
    """Returns the path of mpirun and its dialect: openmpi, hydra or intel.

    Raises LauncherNotFoundError, also for a dialect that `launcher` does not stand for.
    """
    program, dialect = _installed(launcher)
    accepted = ACCEPTED.get(launcher, (dialect,))
    if dialect not in accepted:
        expected = " or ".join(f"{NAMES[name]}'s" for name in accepted)
        problem = f"{program} is {NAMES[dialect]}'s, expected {expected}"
        raise LauncherNotFoundError(
            launcher, problem, "Put that one first on PATH, or choose mpi, which takes any mpirun"
        )
    return program, dialect


def assumed(launcher: str) -> tuple[str, str]:
    """Returns the result that `find` has on a machine where the launcher is likely to be installed."""
    return "mpirun", ACCEPTED.get(launcher, ("openmpi",))[0]


def _installed(launcher: str) -> tuple[str, str]:
    program = shutil.which("mpirun")
    if program is None:
        raise LauncherNotFoundError(launcher, "there is no mpirun on PATH", ADVICE)
    command = [program, "--version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=VERSION_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherNotFoundError(launcher, f"{program} --version failed: {error}", ADVICE) from error
    output = done.stdout + done.stderr
    for word, dialect in DIALECTS.items():
        if word in output:
            return program, dialect
    first_line = (output.strip().splitlines() or [""])[0]
    problem = f"{program} --version prints {first_line!r}: expected Open MPI, MPICH or Intel MPI"
    raise LauncherNotFoundError(launcher, problem, ADVICE)


def engine_command(plan: Plan, program: str, dialect: str, dry_run: bool = False) -> list[str]:
    """Returns the mpirun command: one part a host, so that hosts may differ in slots. Ranks follow the hosts' order.

    MPI's own binding is off: each rank binds itself. Raises SettingError.
    """
    if ":" in plan.command:
        expected = "no argument that is only a colon, which separates the parts of an mpirun command"
        raise SettingError("the program's argument", ":", expected)
    argv = [program, *_global_options(plan, dialect)]
    for number, host in enumerate(plan.hosts):
        count = str(len(host.chosen))
        argv += [":"] if number else []
        if dialect == "openmpi":
            argv += ["-n", count, "--host", f"{host.name}:{count}", "--map-by", "slot", "--bind-to", "none"]
            # Open MPI passes no variable to other hosts unless it is named; the other dialects pass all.
            argv += [word for name in plan.exports for word in ("-x", name)]
        else:
            argv += ["-n", count, *(["-host", host.name] if dialect == "intel" else [])]
        argv += plan.rank_command("openmpi" if dialect == "openmpi" else "hydra", host, dry_run)
    return argv


def _global_options(plan: Plan, dialect: str) -> list[str]:
    """Returns the options for all parts: how other hosts are reached, the working folder, no binding by MPI."""
    if dialect == "openmpi":
        argv = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        argv += ["--mca", "plm_rsh_agent", shlex.join(plan.ssh)] if plan.remote else []
        return [*argv, "--wdir", plan.folder]
    if len(plan.ssh) > 1 and plan.remote:
        expected = "one program without arguments: this mpirun accepts no more"
        raise SettingError("--ssh", shlex.join(plan.ssh), expected)
    if dialect == "intel":
        remote_shell = ["-bootstrap", "ssh", "-bootstrap-exec", plan.ssh[0]] if plan.remote else []
        return [*remote_shell, "-genvall", "-genv", "I_MPI_PIN", "off", "-wdir", plan.folder]
    remote_shell = ["-launcher", "ssh", "-launcher-exec", plan.ssh[0]] if plan.remote else []
    # MPICH accepts one list of hosts for all parts, and fills it in order.
    hosts = ",".join(f"{host.name}:{len(host.chosen)}" for host in plan.hosts)
    return [*remote_shell, "-genvall", "-bind-to", "none", "-wdir", plan.folder, "-hosts", hosts]
