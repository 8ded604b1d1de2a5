"""Cases of the collectives of one host: all_reduce of two ranks beside DeepSpeed's op, gloo, and a copy in each."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import Call, Case, Prepared
from opforge.ops.cases.processes import Rank, in_ranks
from opforge.ops.cases.rivals import DEEPSPEED, deepspeed

if TYPE_CHECKING:
    from torch import Tensor

RANKS, TIMEOUT = 2, 20.0
"""TIMEOUT in seconds, of each call that is compared."""
SIZES = (1 << 16, 1 << 20, 1 << 26)
"""Bytes."""
CONFIG = "TUNED_CONFIG"
"""The variable by which the ranks get the config that is tuned."""
BACKEND, GLOO, COPY = "torch.distributed, opforge_shm", "gloo", "copy in each rank"
FILES = os.path.join(os.sep, "dev", "shm", "deepspeed_allreduce_buffer_*")


def _values(rank: Rank) -> Tensor:
    torch.set_num_threads(1)
    return torch.zeros(rank.size // 4)


def _store(rank: Rank) -> Any:
    dist: Any = torch.distributed
    return dist.FileStore(os.path.join(rank.folder, "meeting"), rank.ranks)


def ours(rank: Rank) -> Call:
    """Returns a rank's call of `Group`, with the config that is tuned. Raises AssertionError if its sum is wrong."""
    from opforge.fast_path import library
    from opforge.ops.host_op import host_op
    from opforge.ops.shm.group import Group

    values, config = _values(rank), json.loads(os.environ[CONFIG])
    if config:
        entry = host_op("ShareMemCommBuilder").__entry__
        library.held.add(entry.key)
        library.set_tuned(entry, [[-1, 0, 1 << 60, config]], is_held=True)
    group = Group(_store(rank), rank.rank, rank.ranks)
    numbers = torch.arange(len(values), dtype=torch.float32) % 1024
    values.copy_(numbers * (rank.rank + 1))
    group.all_reduce(values)
    assert torch.equal(values, numbers * sum(range(1, rank.ranks + 1))), "its sum differs from the reference's"
    values.zero_()
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


def _in_ranks(function: str, inputs: Prepared) -> Call:
    settings = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", CONFIG: json.dumps(dict(inputs.place.config))}
    return in_ranks(inputs.place, RANKS, f"{__name__}:{function}", **settings)


def _all_ranks_agree(loaded: Any, _device: str) -> None:
    """Checks two ranks in threads of one process, which meet in shared memory as processes do."""
    from concurrent.futures import ThreadPoolExecutor

    distributed: Any = torch.distributed
    store = distributed.HashStore()
    with ThreadPoolExecutor(RANKS) as threads:
        for dtype in (torch.float32, torch.bfloat16):
            for elements in (1, 1025, 1 << 18):
                what = f"of {elements} {dtype}"
                tensors = [
                    torch.randn(elements, generator=torch.Generator().manual_seed(rank)).to(dtype)
                    for rank in range(RANKS)
                ]
                own = distributed.PrefixStore(what, store)
                ranks = [threads.submit(_collect, loaded, own, rank, tensors[rank]) for rank in range(RANKS)]
                results = [rank.result() for rank in ranks]
                exact = torch.stack(tensors).double().sum(0)
                tolerance = 2 * torch.finfo(dtype).eps
                for rank, (total, gathered) in enumerate(results):
                    close = torch.isclose(total.double(), exact.to(dtype).double(), rtol=tolerance, atol=tolerance)
                    assert close.all(), f"all_reduce {what} on rank {rank}: {int((~close).sum())} elements differ"
                    assert torch.equal(total, results[0][0]), f"rank {rank} has other bits than rank 0"
                    assert torch.equal(gathered, torch.cat(tensors)), f"all_gather {what}"


def _collect(loaded: Any, store: Any, rank: int, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a rank's sum of all tensors, and the tensors of all."""
    from opforge.ops.shm.group import Group

    group = Group(store, rank, RANKS, TIMEOUT, op=loaded)
    try:
        gathered, total = tensor.new_empty(RANKS * tensor.numel()), tensor.clone()
        group.all_gather(gathered, tensor)
        group.all_reduce(total)
        group.barrier()
    finally:
        group.close()
    return total, gathered


def _deepspeed(inputs: Prepared) -> Call:
    place = inputs.place
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


_RIVALS: dict[str, Callable[[Prepared], Call]] = {
    BACKEND: partial(_in_ranks, "backend"),
    GLOO: partial(_in_ranks, "gloo"),
    DEEPSPEED: _deepspeed,
    COPY: partial(_in_ranks, "copies"),
}

SHARE_MEM_COMM = (
    Case(
        "all_reduce, 2 ranks",
        lambda place: (),
        checks={"all ranks get the sums and what the others have": _all_ranks_agree},
        sizes=SIZES,
        size_unit="bytes",
        ours=partial(_in_ranks, "ours"),
        rivals=_RIVALS,
        baseline=(COPY,),
        amount=lambda size, itemsize: 2 * size,
        quick=(1 << 20,),
        goals={DEEPSPEED: 1.0, GLOO: {1 << 16: 10.0, 1 << 20: 4.0, 1 << 26: 2.0}},
        tuned={"any": (1 << 18, 1 << 20, 1 << 22, 1 << 24)},
    ),
)
