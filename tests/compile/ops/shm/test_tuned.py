"""Ranks with different tuning results: the chunks of a group are those of the rank that made it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.processes import ranks

from opforge.builders.cpu.share_mem_comm import ShareMemCommBuilder
from opforge.fast_path import library
from opforge.ops import shm
from opforge.ops.host_op import host_op

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
ANY_DTYPE, COUNT = -1, 1 << 19


def exchanged(rank, size, store):
    """Sums 2 MiB: in two chunks of 1 MiB by rank 0's result, and in eight of 256 KiB by that of the others."""
    entry = host_op("ShareMemCommBuilder").__entry__
    assert library.set_tuned(entry, [[ANY_DTYPE, 0, 1 << 60, {"parts": 2 if rank == 0 else 32}]]) == ""
    group = shm.Group(dist.FileStore(store, size), rank, size, 60.0)
    values = torch.arange(COUNT, dtype=torch.float32) * (rank + 1)
    group.all_reduce(values)
    return torch.equal(values, torch.arange(COUNT, dtype=torch.float32) * sum(range(1, size + 1)))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_with_different_results_agree(tmp_path, size):
    assert set(ShareMemCommBuilder.tunable["parts"]) >= {2, 32}
    assert ranks.Ranks(exchanged, size, tmp_path).results() == [True] * size
