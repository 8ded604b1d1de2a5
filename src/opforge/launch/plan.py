"""The plan of a launch: the hosts, the ranks on each, and the command of each rank."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from .bind_options import BindOptions
from .hostfile import Host


@dataclass(frozen=True)
class Plan:
    """The plan of a launch."""

    launcher: str
    requested: str
    """The launcher as it was named, such as impi, which stands for fewer programs than mpi."""
    hosts: tuple[Host, ...]
    """In the order of their ranks. Empty if Slurm chooses the hosts."""
    slots: int
    """The ranks on each host, if Slurm chooses the hosts."""
    bind_options: BindOptions
    command: tuple[str, ...]
    """The program of each rank."""
    master_addr: str
    """Empty if the engine chooses the address."""
    master_port: int | None
    """None if the engine chooses a free port."""
    ssh: tuple[str, ...]
    exports: Mapping[str, str]
    """Environment variables for remote hosts. Slurm and hydra pass on all variables themselves."""
    visible: Mapping[str, Mapping[str, str]]
    """By host name, the variables that hide all devices but those of the chosen slots."""
    folder: str
    """The working folder of the program, on every host."""

    @property
    def remote(self) -> tuple[Host, ...]:
        """The hosts that are not this machine."""
        return tuple(host for host in self.hosts if not host.is_local)

    def rank_command(self, engine: str, host: Host | None, dry_run: bool = False) -> list[str]:
        """Returns the command that the engine starts for each rank: `opforge.launch.rank`, which becomes the program.

        Args:
            engine: Whose environment variables give the rank: torchrun, openmpi, hydra or slurm.
            host: The host of the rank; None if Slurm chooses it.
            dry_run: Whether the rank only prints where it would run.
        """
        argv = [sys.executable, "-m", "opforge.launch.rank", "--engine", engine]
        if host is not None:
            argv += ["--slots", str(host.slots), "--chosen", ",".join(str(slot) for slot in host.chosen)]
            for name, value in self.visible.get(host.name, {}).items():
                argv += ["--set", f"{name}={value}"]
        argv += self.bind_options.arguments()
        if engine != "torchrun":  # torchrun sets MASTER_ADDR and MASTER_PORT itself
            argv += ["--master-addr", self.master_addr] if self.master_addr else []
            argv += ["--master-port", str(self.master_port)] if self.master_port else []
        return [*argv, *(["--report"] if dry_run else []), "--", *self.command]
