"""The backend "opforge_shm" of torch.distributed: its calls, several groups, DDP and FSDP2."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.processes import ranks

from opforge.ops import shm


def start(rank, size, store, backend="cpu:opforge_shm", seconds=30):
    shm.register()
    timeout = timedelta(seconds=seconds)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)


def every_call(rank, size, store):
    start(rank, size, store)
    x = torch.full((5, 3), float(rank))
    dist.all_reduce(x)
    assert x.unique().tolist() == [sum(range(size))]
    x = torch.full((7,), rank + 1, dtype=torch.int32)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert x.unique().tolist() == [size]
    work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
    assert work.wait()
    assert work.is_completed() and work.get_future().wait()[0] is x
    x = torch.full((4,), float(rank))
    dist.broadcast(x, 1)
    assert x.tolist() == [1.0] * 4
    dist.reduce(x, 0)
    assert x.tolist() == [float(size) if rank == 0 else 1.0] * 4
    parts = [torch.empty(2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert [part[0].item() for part in parts] == [*map(float, range(size))]
    whole = torch.empty(2 * size)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    assert whole.tolist() == [float(r) for r in range(size) for _ in range(2)]
    dist.gather(torch.tensor([rank]), parts := [torch.empty(1, dtype=torch.int64) for _ in range(size)], dst=0) if (
        rank == 0
    ) else dist.gather(torch.tensor([rank]), dst=0)
    assert rank or [part.item() for part in parts] == [*range(size)]
    out = torch.empty(3)
    dist.scatter(out, [torch.full((3,), float(r)) for r in range(size)] if rank == 1 else None, src=1)
    assert out.tolist() == [float(rank)] * 3
    dist.reduce_scatter(out, [torch.full((3,), float(r + rank)) for r in range(size)])
    assert out.tolist() == [float(sum(range(size)) + size * rank)] * 3
    dist.reduce_scatter_tensor(out, torch.arange(3.0 * size))
    assert out.tolist() == [size * float(3 * rank + i) for i in range(3)]
    out = torch.empty(size)
    dist.all_to_all_single(out, torch.arange(float(size)) + 10 * rank)
    assert out.tolist() == [10.0 * r + rank for r in range(size)]
    sizes = [rank + 1] * size
    out = torch.empty(sum(range(1, size + 1)))
    dist.all_to_all_single(out, torch.full((size * (rank + 1),), float(rank)), [r + 1 for r in range(size)], sizes)
    assert out.tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
    outs = [torch.empty(2) for _ in range(size)]
    dist.all_to_all(outs, [torch.tensor([rank, r], dtype=torch.float32) for r in range(size)])
    assert [part.tolist() for part in outs] == [[float(r), float(rank)] for r in range(size)]
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    listed = [rank, "x"] if rank == 0 else [None, None]
    dist.broadcast_object_list(listed, 0)
    assert listed == [0, "x"]
    dist.barrier()
    assert dist.group.WORLD.name() == "opforge_shm"
    dist.destroy_process_group()
    return "done"


def test_every_call_of_torch_distributed(tmp_path):
    assert ranks.run(every_call, 3, tmp_path) == ["done"] * 3


def messages(rank, size, store):
    start(rank, size, store)
    right, left = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(1 << 20)
    # A blocking send would wait for ever: the message is larger than what is buffered.
    works = [dist.isend(torch.full((1 << 20,), float(rank)), right), dist.irecv(got, left)]
    for work in works:
        work.wait()
    assert got.unique().tolist() == [float(left)]
    operations = [dist.P2POp(dist.isend, torch.tensor([rank]), right), dist.P2POp(dist.irecv, got[:1].long(), left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if rank == 0:
        for tag in (1, 2, 3):
            dist.send(torch.tensor([tag]), 1, tag=tag)
    if rank == 1:
        read = torch.empty(1, dtype=torch.int64)
        for tag in (3, 1, 2):  # not in the order in which they were sent
            dist.recv(read, 0, tag=tag)
            assert read.item() == tag
    objects = [None]
    if rank == 0:
        dist.send_object_list([{"a": 1}], 2)
    if rank == 2:
        dist.recv_object_list(objects, 0)
        assert objects == [{"a": 1}]
    dist.barrier()
    dist.destroy_process_group()
    return "done"


def test_messages_have_tags_and_do_not_block_each_other(tmp_path):
    assert ranks.run(messages, 3, tmp_path) == ["done"] * 3


def several_groups(rank, size, store):
    start(rank, size, store, "gloo")
    groups = {pair: dist.new_group(list(pair), backend="opforge_shm") for pair in ((0, 1), (1, 2), (0, 1, 2))}
    x = torch.tensor([1.0 + rank])
    for pair, group in groups.items():
        if rank in pair:
            y = x.clone()
            dist.all_reduce(y, group=group)
            assert y.item() == sum(1.0 + r for r in pair)
    # All at once, in the background: each group has an order of its own.
    works, results = [], []
    for pair in sorted(groups, reverse=bool(rank % 2)):
        if rank in pair:
            y = torch.full((100_000,), 1.0 + rank)
            works.append(dist.all_reduce(y, group=groups[pair], async_op=True))
            results.append((pair, y))
    for work in works:
        work.wait()
    for pair, y in results:
        assert y.unique().tolist() == [sum(1.0 + r for r in pair)]
    dist.barrier()
    dist.destroy_process_group()
    return "done"


def test_several_groups_at_once_beside_gloo(tmp_path):
    assert ranks.run(several_groups, 3, tmp_path) == ["done"] * 3


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def batch(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 8, generator=generator)


def expected(size):
    """Returns the parameters after two steps on all ranks' batches."""
    alone = model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        sum(alone(batch(rank)).square().mean() for rank in range(size)).div(size).backward()
        optimizer.step()
    return [parameter.detach() for parameter in alone.parameters()]


def train(wrapped, rank):
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(batch(rank)).square().mean().backward()
        optimizer.step()


def ddp(rank, size, store):
    start(rank, size, store)
    wrapped = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    train(wrapped, rank)
    torch.testing.assert_close([parameter.detach() for parameter in wrapped.parameters()], expected(size))
    dist.barrier()
    dist.destroy_process_group()
    return "done"


def fsdp(rank, size, store):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    start(rank, size, store)
    wrapped = model()
    mesh = init_device_mesh("cpu", (size,))
    for layer in wrapped:
        fully_shard(layer, mesh=mesh)
    fully_shard(wrapped, mesh=mesh)
    train(wrapped, rank)
    full = [parameter.full_tensor().detach() for parameter in wrapped.parameters()]
    torch.testing.assert_close(full, expected(size))
    dist.barrier()
    dist.destroy_process_group()
    return "done"


@pytest.mark.parametrize("trainer", [ddp, fsdp])
def test_data_parallel_training_is_that_of_one_process(tmp_path, trainer):
    assert ranks.run(trainer, 2, tmp_path) == ["done"] * 2
