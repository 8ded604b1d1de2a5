"""A process's place in the job, as its engine tells it: rank, size, and the same on its host."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from opforge.errors import LaunchError


class Numbers(NamedTuple):
    """A process's place."""

    rank: int
    size: int
    local_rank: int
    local_size: int


_NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "openmpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "hydra": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}
"""By engine: the variables for rank, size, local rank, local size. Intel MPI's launcher is a hydra."""


def read_numbers(engine: str, environ: Mapping[str, str]) -> Numbers:
    """Read the place. Raises LaunchError where the engine has not told it."""
    values = []
    readers: tuple[Callable[[str], int], ...] = (int, int, int, int)
    if engine == "slurm":
        readers = (int, int, int, lambda text: _tasks_here(text, int(environ.get("SLURM_NODEID", "0"))))
    for name, reader in zip(_NAMES[engine], readers, strict=True):
        text = environ.get(name, "")
        try:
            values.append(reader(text))
        except (ValueError, IndexError):
            said = f"{name}={text!r}" if text else f"no {name}"
            raise LaunchError(
                f"this process was started with {said}",
                f"Start it through `opforge launch --launcher {'mpi' if engine in ('openmpi', 'hydra') else engine}`",
            ) from None
    return Numbers(*values)


def _tasks_here(text: str, node: int) -> int:
    """The tasks of one node out of Slurm's list, such as `4(x2),3`."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ValueError(text)
        counts += [int(found[1])] * int(found[2] or 1)
    return counts[node]


def first_host(nodelist: str) -> str:
    """The first host of a list as Slurm writes it: `node07` of `node[07-09,12],gpu1`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0]) if first else nodelist
