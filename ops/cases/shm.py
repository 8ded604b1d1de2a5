"""Cases of the collectives of one host: all_reduce of two ranks beside DeepSpeed's op, gloo, and a copy in each."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.ops.cases.form import OURS, Call, Case, Place
from opforge.ops.cases.processes import Rank, in_ranks
from opforge.ops.cases.rivals import DEEPSPEED, deepspeed

if TYPE_CHECKING:
    from torch import Tensor

RANKS = 2
SIZES = (1 << 14, 1 << 18, 1 << 24)
"""Elements: 64 KiB, 1 MiB and 64 MiB of float32."""
BACKEND, GLOO, COPY = "torch.distributed, opforge_shm", "gloo", "copy in each rank"
FILES = os.path.join(os.sep, "dev", "shm", "deepspeed_allreduce_buffer_*")


def _values(rank: Rank) -> Tensor:
    import torch

    torch.set_num_threads(1)
    return torch.zeros(rank.size, dtype=getattr(torch, rank.dtype))


def _store(rank: Rank) -> Any:
    import torch

    dist: Any = torch.distributed
    return dist.FileStore(os.path.join(rank.folder, "meeting"), rank.ranks)


def ours(rank: Rank) -> Call:
    """Returns a rank's call of `Group`."""
    from opforge.ops.shm.group import Group

    values, group = _values(rank), Group(_store(rank), rank.rank, rank.ranks)
    return lambda: group.all_reduce(values)


def process_group(backend: str, rank: Rank) -> Call:
    """Returns a rank's call of torch.distributed with a backend."""
    import torch.distributed as dist

    from opforge.ops.shm.registration import register

    register()
    dist.init_process_group(backend, store=_store(rank), rank=rank.rank, world_size=rank.ranks)
    values = _values(rank)
    return lambda: dist.all_reduce(values)


def backend(rank: Rank) -> Call:
    """Returns a rank's call of torch.distributed with this backend."""
    return process_group("cpu:opforge_shm", rank)


def gloo(rank: Rank) -> Call:
    """Returns a rank's call of gloo."""
    return process_group("gloo", rank)


def deepspeeds(rank: Rank) -> Call:
    """Returns a rank's call of DeepSpeed's own op."""
    import contextlib
    import importlib
    import sys

    import torch

    with contextlib.redirect_stdout(sys.stderr):
        op = importlib.import_module("deepspeed.ops.op_builder.cpu").ShareMemCommBuilder().load()
    op.initialize(rank.ranks, rank.rank)
    values = _values(rank)
    return lambda: torch.ops.deepspeed.inference_all_reduce_(values)


def copies(rank: Rank) -> Call:
    """Returns a rank's copy of as many bytes as its tensor has."""
    values = _values(rank)
    source = values.clone()
    return lambda: values.copy_(source)


def _place(place: Place) -> Place:
    return place


def _in_ranks(function: str, place: Place) -> Call:
    return in_ranks(place, RANKS, f"{__name__}:{function}", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")


def _deepspeed(place: Place) -> Call:
    deepspeed(place, "deepspeed.ops.op_builder.cpu", "ShareMemCommBuilder")
    # Its files are named by these, and stay when its processes end.
    address = f"opforge_{os.getpid()}_{place.size}"
    place.stack.callback(_remove_files, address)
    names = {"MASTER_ADDR": address, "MASTER_PORT": "0", "LOCAL_SIZE": str(RANKS), "DS_ACCELERATOR": "cpu"}
    return in_ranks(place, RANKS, f"{__name__}:deepspeeds", OMP_NUM_THREADS="1", **names)


def _remove_files(address: str) -> None:
    for path in glob.glob(FILES):
        if address in path:
            os.unlink(path)


_CONTENDERS: dict[str, Callable[[Place], Call]] = {
    OURS: partial(_in_ranks, "ours"),
    BACKEND: partial(_in_ranks, "backend"),
    GLOO: partial(_in_ranks, "gloo"),
    DEEPSPEED: _deepspeed,
    COPY: partial(_in_ranks, "copies"),
}

SHARE_MEM_COMM = (
    Case(
        "all_reduce, 2 ranks",
        SIZES,
        _place,
        _CONTENDERS,
        (COPY,),
        lambda size, itemsize: 2 * size * itemsize,
        quick=(1 << 18,),
        goals={DEEPSPEED: 1.0, GLOO: {1 << 14: 10.0, 1 << 18: 4.0, 1 << 24: 2.0}},
    ),
)
