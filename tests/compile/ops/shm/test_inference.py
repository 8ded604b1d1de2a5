"""DeepSpeed's functions: initialize, vector_kernel_level, torch.ops.deepspeed.inference_all_reduce(_)."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.processes import ranks

from opforge.builders.cpu.share_mem_comm import ShareMemCommBuilder


def start(rank, size, store):
    timeout = timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
    return ShareMemCommBuilder().load()


def reduce(rank, size, store):
    op = start(rank, size, store)
    op.initialize(size, rank)
    op.initialize(size, rank)
    assert op.vector_kernel_level() == 2
    ops = torch.ops.deepspeed
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64):
        x = torch.full((5, 7), rank + 1).to(dtype)
        result = ops.inference_all_reduce(x)
        assert x.unique().tolist() == [rank + 1]
        assert result.unique().tolist() == [sum(range(size + 1))]
        strided = torch.full((6, 8), rank + 1).to(dtype)
        assert ops.inference_all_reduce_(strided[:, ::2]) is not None
        assert strided[:, ::2].unique().tolist() == [sum(range(size + 1))]
        assert strided[:, 1::2].unique().tolist() == [rank + 1]
    dist.barrier()
    dist.destroy_process_group()
    return os.environ.get("LOCAL_SIZE")


@pytest.mark.parametrize("local_size", [None, "1", "2", "7"])
def test_sums_whatever_local_size_says(tmp_path, monkeypatch, local_size):
    monkeypatch.delenv("LOCAL_SIZE", raising=False)
    if local_size:
        monkeypatch.setenv("LOCAL_SIZE", local_size)
    assert ranks.run(reduce, 2, tmp_path) == [local_size] * 2


def elsewhere(rank, size, store):
    from opforge.ops.shm import rendezvous

    here = rendezvous._this_process()
    rendezvous._this_process = lambda: {**here, "host": str(rank)}
    start(rank, size, store).initialize(size, rank)
    return hasattr(torch.ops.deepspeed, "inference_all_reduce_")


def test_ranks_of_two_hosts_use_the_process_group(tmp_path):
    assert ranks.run(elsewhere, 2, tmp_path) == [False, False]


def again_with_others(rank, size, store):
    sums = []
    for number in range(2):
        op = start(rank, size, f"{store}{number}")
        op.initialize(size, rank)
        sums.append(torch.ops.deepspeed.inference_all_reduce_(torch.tensor([1.0 + rank])).item())
        dist.barrier()
        dist.destroy_process_group()
    return sums


def test_a_second_process_group_gets_a_group_of_its_own(tmp_path):
    assert ranks.run(again_with_others, 2, tmp_path) == [[3.0, 3.0]] * 2


def check_as_torch_does(rank, size, store):
    start(rank, size, store).initialize(size, rank)
    ops = torch.ops.deepspeed
    torch.library.opcheck(ops.inference_all_reduce.default, (torch.ones(4, 3),))
    x = torch.ones(4, 3)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(ops.inference_all_reduce_.default, (x,), test_utils=tests)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(tensor):
        tensor = tensor * 2
        ops.inference_all_reduce_(tensor)
        return ops.inference_all_reduce(tensor) + 1

    return compiled(torch.ones(3)).tolist()


def test_the_ops_pass_torchs_checks_and_compile(tmp_path):
    assert ranks.run(check_as_torch_does, 1, tmp_path) == [[3.0] * 3]
