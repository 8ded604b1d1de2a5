"""The numbers of a rank, as its engine's environment variables give them: rank, size, and both on its host."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from opforge.errors import LaunchError


class Numbers(NamedTuple):
    """The numbers of one rank."""

    rank: int
    size: int
    local_rank: int
    local_size: int


_VARIABLES = {
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
    """Returns the numbers of this rank. Raises LaunchError if the engine has not set them."""
    values = []
    parsers: tuple[Callable[[str], int], ...] = (int, int, int, int)
    if engine == "slurm":
        parsers = (int, int, int, lambda text: _tasks_of_node(text, int(environ.get("SLURM_NODEID", "0"))))
    for name, parse in zip(_VARIABLES[engine], parsers, strict=True):
        text = environ.get(name, "")
        try:
            values.append(parse(text))
        except (ValueError, IndexError):
            launcher = "mpi" if engine in ("openmpi", "hydra") else engine
            raise LaunchError(
                f"{name}={text!r} does not parse" if text else f"{name} is not set",
                f"Start this process by `opforge launch --launcher {launcher}`",
            ) from None
    return Numbers(*values)


def _tasks_of_node(text: str, node: int) -> int:
    """Returns the number of tasks of one node in Slurm's list, such as `4(x2),3`."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(text)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts[node]


def first_host(nodelist: str) -> str:
    """Returns the first host of a list as Slurm writes it: `node07` of `node[07-09,12],gpu1`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0]) if first else nodelist
