"""From what was typed to what would be started: hosts, ranks, their commands. Nothing is started here."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from opforge.errors import LauncherNotFoundError, SettingError

from .binding.rank_binding import Wishes, check_environment, parse_cores
from .hostfile import Host, first_slots, read_hostfile, select

LAUNCHERS = ("torchrun", "mpi", "slurm")
DEFAULT_PORT = 29500
EXPORTED = ("OPFORGE_", "DS_ACCELERATOR", "PYTHON")
"""Variables that go to remote hosts beside those that the accelerator names."""
THIS_HOST = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Options:
    """What was typed."""

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
    """The program is a module, as for `python -m`."""
    no_python: bool = False
    """The program is started as it is, without Python before it."""


@dataclass(frozen=True)
class Plan:
    """What would be started."""

    launcher: str
    hosts: tuple[Host, ...]
    """In the order of their ranks; none where Slurm will choose them."""
    slots: int
    """The ranks on a host, where Slurm will choose the hosts."""
    wishes: Wishes
    command: tuple[str, ...]
    """What each rank becomes."""
    master_addr: str
    """Empty: the engine knows."""
    master_port: int | None
    """None: the engine picks a free one."""
    ssh: tuple[str, ...]
    exports: Mapping[str, str]
    """Variables for remote hosts; Slurm and hydra hand over all by themselves."""
    visible: Mapping[str, Mapping[str, str]]
    """By host, the variables that leave only the chosen devices."""
    folder: str
    """Where the program runs, on every host."""

    @property
    def remote(self) -> tuple[Host, ...]:
        """The hosts that are not this one."""
        return tuple(host for host in self.hosts if not is_here(host))

    def rank_command(self, engine: str, host: Host | None, tell: bool = False) -> list[str]:
        """What the engine is to start for each rank: our shim, and the program behind it."""
        argv = [sys.executable, "-m", "opforge.launch.rank", "--engine", engine]
        if host is not None:
            argv += ["--slots", str(host.slots), "--chosen", ",".join(str(slot) for slot in host.chosen)]
            for name, value in self.visible.get(host.name, {}).items():
                argv += ["--set", f"{name}={value}"]
        argv += self.wishes.arguments()
        if engine != "torchrun":  # torchrun tells its ranks itself
            argv += ["--master-addr", self.master_addr] if self.master_addr else []
            argv += ["--master-port", str(self.master_port)] if self.master_port else []
        return [*argv, *(["--tell"] if tell else []), "--", *self.command]


def make_plan(options: Options, environ: Mapping[str, str]) -> Plan:
    """Resolve the options. Raises SettingError, HostfileError, and what choosing an accelerator raises."""
    if options.launcher not in LAUNCHERS:
        known = "torchrun, mpi (Open MPI, MPICH and Intel MPI) or slurm"
        raise LauncherNotFoundError(options.launcher, "there is none of that name", f"Choose {known}")
    try:
        ssh = shlex.split(options.ssh)
    except ValueError:
        ssh = []
    if not ssh:
        raise SettingError("--ssh", options.ssh, "a command with its quotes closed, such as ssh or 'ssh -p 2222'")
    listed = parse_cores(options.core_list) if options.core_list else ()
    bind = options.bind or bool(listed) or options.smt != "keep"
    if bind:
        check_environment(environ)
    hosts, slots = _hosts(options)
    own = [host.name for host in hosts if is_here(host)]
    if len(own) > 1:
        raise SettingError("--hostfile", own[1], f"each host once; {own[0]} is this machine too")
    here = len(own) == len(hosts)
    accelerator = "cpu"
    if bind:
        from opforge.accelerator.select import get_accelerator

        accelerator = get_accelerator().name
    addr, port = _master(options, hosts, here)
    return Plan(
        launcher=options.launcher,
        hosts=hosts,
        slots=slots,
        wishes=Wishes(bind, listed, options.smt, accelerator, not environ.get("OMP_NUM_THREADS")),
        command=_command(options),
        master_addr=addr,
        master_port=port,
        ssh=tuple(ssh),
        exports={} if here or options.launcher == "slurm" else _exports(environ),
        visible={host.name: _visible(host, environ) for host in hosts if len(host.chosen) < host.slots},
        folder=os.getcwd(),
    )


def is_here(host: Host) -> bool:
    """Whether a host is this machine, by its name."""
    own = socket.gethostname()
    return host.name in THIS_HOST or host.name in (own, own.partition(".")[0])


def _hosts(options: Options) -> tuple[tuple[Host, ...], int]:
    """The hosts with their chosen slots; none, and the ranks on each, where Slurm chooses."""
    if options.hostfile:
        hosts = select(read_hostfile(options.hostfile), options.include, options.exclude)
        return (hosts if options.num_accelerators is None else first_slots(hosts, options.num_accelerators)), 0
    count = options.num_accelerators
    if count is None:
        from opforge.accelerator.select import get_accelerator

        count = get_accelerator().device_count()
    if count < 1:
        raise SettingError("--num-accelerators", count, "a whole number, 1 or more")
    if options.launcher == "slurm":
        for name, value in (("--include", options.include), ("--exclude", options.exclude)):
            if value:
                raise SettingError(name, value, "a hostfile beside it: without one Slurm chooses the hosts")
        return (), count
    return select((Host.whole("localhost", count),), options.include, options.exclude), 0


def _master(options: Options, hosts: tuple[Host, ...], here: bool) -> tuple[str, int | None]:
    if hosts and here:
        if options.master_addr or options.master_port or options.launcher != "torchrun":
            return options.master_addr or "127.0.0.1", options.master_port or _free_port()
        return "", None  # torchrun finds a port by itself
    addr = options.master_addr or (hosts[0].address if hosts else "")
    if len(hosts) > 1 and addr in THIS_HOST:
        advice = "an address of the first host that the other hosts can reach"
        raise SettingError("--master-addr", addr, advice)
    return addr, options.master_port or DEFAULT_PORT


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _command(options: Options) -> tuple[str, ...]:
    if options.no_python and options.module:
        raise SettingError("--module", True, "not to be given together with --no-python")
    if options.no_python:
        return options.program
    return (sys.executable, "-u", *(["-m"] if options.module else []), *options.program)


def _exports(environ: Mapping[str, str]) -> dict[str, str]:
    from opforge.accelerator.select import get_accelerator

    prefixes = (*EXPORTED, *get_accelerator().export_envs())
    return {name: value for name, value in sorted(environ.items()) if name.startswith(prefixes)}


def _visible(host: Host, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that show a process the chosen devices only; nothing for a CPU, whose slots are shares of cores."""
    from opforge.accelerator.select import get_accelerator

    accelerator = get_accelerator()
    if accelerator.name == "cpu":
        return {}
    found: dict[str, str] = {}
    seen = [environ[name].split(",") for name in accelerator.visible_devices_envs() if environ.get(name)]
    devices: list[int | str] = list(host.chosen)
    if seen and is_here(host) and len(seen[0]) >= host.slots:
        devices = [seen[0][slot] for slot in host.chosen]
    accelerator.set_visible_devices_envs(found, devices)
    return found
