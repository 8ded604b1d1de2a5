"""Resolves the options of `opforge launch` to a plan: hosts, ranks, their commands. Starts nothing."""

from __future__ import annotations

import difflib
import glob
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from opforge.errors import LauncherNotFoundError, SettingError

from .bind_options import BindOptions
from .binding.rank_binding import check_environment
from .core_list import parse_core_list
from .hostfile import LOCAL_NAMES, Host, first_slots, read_hostfile, select
from .plan import Plan

LAUNCHERS = ("torchrun", "mpi", "slurm")
ALIASES = {"openmpi": "mpi", "mpich": "mpi", "impi": "mpi", "pdsh": "torchrun"}
"""DeepSpeed's names of launchers -> ours. `mpi` is any mpirun, the others one of their own; torchrun uses ssh."""
DEFAULT_PORT = 29500
EXPORTED_PREFIXES = ("OPFORGE_", "DS_ACCELERATOR", "PYTHON")
"""Remote hosts get the variables that begin so, and those that the accelerator names."""


class Devices(Protocol):
    """The part of the machine's accelerator that a plan uses."""

    @property
    def name(self) -> str:
        """Such as cpu or cuda."""
        ...

    def device_count(self) -> int:
        """Returns how many devices there are."""
        ...

    def export_envs(self) -> list[str]:
        """Returns the beginnings of the names of variables that remote hosts need."""
        ...

    def visible_devices_envs(self) -> list[str]:
        """Returns the variables that choose devices."""
        ...

    def set_visible_devices_envs(self, current_env: Any, local_accelerator_ids: Any) -> None:
        """Sets these variables."""
        ...


@dataclass(frozen=True)
class Options:
    """The options as they were typed."""

    program: tuple[str, ...]
    """The script and its arguments."""
    launcher: str = "torchrun"
    num_accelerators: int | None = None
    bind: bool = False
    core_list: str = ""
    smt: str = "keep"
    hostfile: str = ""
    include: str = ""
    exclude: str = ""
    master_addr: str = ""
    master_port: int | None = None
    ssh: str = "ssh"
    module: bool = False
    """Whether the program is a module, as for `python -m`."""
    no_python: bool = False
    """Whether the program is started as it is, without Python before it."""


def make_plan(options: Options, environ: Mapping[str, str], devices: Callable[[], Devices]) -> Plan:
    """Returns the plan of a launch. `devices` returns the machine's accelerator, and is called only if it is needed.

    Raises SettingError, HostfileError, LauncherNotFoundError, and what `devices` raises.
    """
    requested = options.launcher.lower()
    options = replace(options, launcher=ALIASES.get(requested, requested))
    if options.launcher not in LAUNCHERS:
        advice = "Choose torchrun (or pdsh), mpi (or openmpi, mpich, impi) or slurm"
        raise LauncherNotFoundError(options.launcher, "there is no such launcher", advice)
    try:
        ssh = shlex.split(options.ssh)
    except ValueError:
        ssh = []
    if not ssh:
        raise SettingError("--ssh", options.ssh, "a command with balanced quotes, such as ssh or 'ssh -p 2222'")
    core_list = parse_core_list(options.core_list) if options.core_list else ()
    bind = options.bind or bool(core_list) or options.smt != "keep"
    if bind:
        check_environment(environ)
    hosts, slots = _hosts(options, devices)
    local_names = [host.name for host in hosts if host.is_local]
    if len(local_names) > 1:
        raise SettingError("--hostfile", local_names[1], f"each host once; {local_names[0]} is this machine too")
    all_local = len(local_names) == len(hosts)
    accelerator = devices().name if bind else "cpu"
    set_threads = not environ.get("OMP_NUM_THREADS")
    addr, port = _master(options, hosts, all_local)
    return Plan(
        launcher=options.launcher,
        requested=requested,
        hosts=hosts,
        slots=slots,
        bind_options=BindOptions(bind, core_list, options.smt, accelerator, set_threads),
        command=_command(options),
        master_addr=addr,
        master_port=port,
        ssh=tuple(ssh),
        exports={} if all_local or options.launcher == "slurm" else _exports(environ, devices()),
        visible={host.name: _visible(host, environ, devices()) for host in hosts if len(host.chosen) < host.slots},
        folder=os.getcwd(),
    )


def _hosts(options: Options, devices: Callable[[], Devices]) -> tuple[tuple[Host, ...], int]:
    """Returns the hosts with their chosen slots; or no host and the ranks on each, if Slurm chooses the hosts."""
    if options.hostfile:
        hosts = select(read_hostfile(options.hostfile), options.include, options.exclude)
        return (hosts if options.num_accelerators is None else first_slots(hosts, options.num_accelerators)), 0
    count = options.num_accelerators
    if count is None:
        count = devices().device_count()
    if count < 1:
        raise SettingError("--num-accelerators", count, "a whole number, 1 or more")
    if options.launcher == "slurm":
        for name, value in (("--include", options.include), ("--exclude", options.exclude)):
            if value:
                raise SettingError(name, value, "--hostfile as well: without it Slurm chooses the hosts")
        return (), count
    return select((Host.whole("localhost", count),), options.include, options.exclude), 0


def _master(options: Options, hosts: tuple[Host, ...], all_local: bool) -> tuple[str, int | None]:
    if hosts and all_local:
        if options.master_addr or options.master_port or options.launcher != "torchrun":
            return options.master_addr or "127.0.0.1", options.master_port or _free_port()
        return "", None  # torchrun finds a free port itself
    addr = options.master_addr or (hosts[0].address if hosts else "")
    if len(hosts) > 1 and addr in LOCAL_NAMES:
        raise SettingError("--master-addr", addr, "an address of the first host that the other hosts can reach")
    return addr, options.master_port or DEFAULT_PORT


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _command(options: Options) -> tuple[str, ...]:
    if options.no_python and options.module:
        raise SettingError("--module", True, "either --module or --no-python, not both")
    if options.no_python:
        return options.program
    return (sys.executable, "-u", *(["-m"] if options.module else []), *options.program)


def _exports(environ: Mapping[str, str], accelerator: Devices) -> dict[str, str]:
    prefixes = (*EXPORTED_PREFIXES, *accelerator.export_envs())
    return {name: value for name, value in sorted(environ.items()) if name.startswith(prefixes)}


def _visible(host: Host, environ: Mapping[str, str], accelerator: Devices) -> dict[str, str]:
    """Returns the variables that hide all devices but the chosen ones. Empty for a CPU: its slots are core shares."""
    if accelerator.name == "cpu":
        return {}
    lists = [environ[name].split(",") for name in accelerator.visible_devices_envs() if environ.get(name)]
    devices: list[int | str] = list(host.chosen)
    if lists and host.is_local and len(lists[0]) >= host.slots:
        devices = [lists[0][slot] for slot in host.chosen]
    variables: dict[str, str] = {}
    accelerator.set_visible_devices_envs(variables, devices)
    return variables


def program_problem(options: Options) -> str | None:
    """Returns why the program cannot be started in this folder, or None. A module is not searched."""
    program = options.program[0]
    if options.module:
        return None
    if options.no_python:
        return None if shutil.which(program) else f"there is no program {program!r}"
    if os.path.isdir(program) and not os.path.exists(os.path.join(program, "__main__.py")):
        return f"{program!r} is a folder without a __main__.py"
    if os.path.exists(program):
        return None
    folder, name = os.path.split(program)
    scripts = [path.removesuffix(".py") for path in glob.glob("*.py", root_dir=folder or None)]
    # The folder and the ending, which all scripts share, make any two of them similar.
    near = difflib.get_close_matches(name.removesuffix(".py"), scripts, n=1)
    suggestion = f"; did you mean {os.path.join(folder, near[0])}.py" if near else ""
    return f"there is no file {program!r} in {os.getcwd()}{suggestion}"
