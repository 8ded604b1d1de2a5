"""Messages that any rank may send, and the backend beside another one."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from support.processes import ranks

from opforge.errors import GroupError
from opforge.ops import shm


def group(rank, size, store, seconds=60.0):
    return shm.Group(dist.FileStore(store, size), rank, size, seconds)


def gathered_by_rank_0(rank, size, store, count):
    shared = group(rank, size, store)
    for large in (False, True):
        elements = 300_000 if large else 3
        if rank:
            for number in range(count):
                time.sleep(0.001 * (number % 3) * rank)
                shared.send(torch.full((elements,), float(100 * rank + number)), 0, tag=large)
            continue
        seen = {other: [] for other in range(1, size)}
        for _ in range(count * (size - 1)):
            x = torch.empty(elements)
            source = shared.receive(x, None, tag=large)
            assert bool((x == x[0]).all())
            seen[source].append(x[0].item())
        assert seen == {other: [100.0 * other + number for number in range(count)] for other in seen}
    shared.barrier()
    return "done"


def test_messages_of_any_rank_arrive_in_each_senders_order(tmp_path):
    assert ranks.run(gathered_by_rank_0, 3, tmp_path, 12) == ["done"] * 3


def other_tags(rank, size, store):
    """Messages with other tags stay for later, also while a thread waits for one of the ranks."""
    shared = group(rank, size, store)
    x = torch.empty(1)
    if rank == 0:
        y = torch.empty(1)
        thread = threading.Thread(target=shared.receive, args=(y, 1, 9))
        thread.start()
        assert shared.receive(x, None, tag=2) == 2 and x.item() == 22
        assert shared.receive(x, None, tag=1) == 2 and x.item() == 21
        shared.send(x, 1)
        thread.join()
        assert y.item() == 19
        with pytest.raises(GroupError) as raised:
            shared.receive(x, timeout=0.3)
        return raised.value.reason
    if rank == 1:
        shared.receive(x, 0)
        shared.send(torch.tensor([19.0]), 0, tag=9)
    else:
        shared.send(torch.tensor([21.0]), 0, tag=1)
        shared.send(torch.tensor([22.0]), 0, tag=2)
    ranks.connection.recv()
    return None


def test_tags_and_the_timeout(tmp_path):
    job = ranks.Ranks(other_tags, 3, tmp_path)
    assert job.report(0) == "late"
    job.send(1)
    job.send(2)
    job.results()


def waits_for_any(rank, size, store, end):
    shared = group(rank, size, store)
    ranks.connection.send("ready")
    if rank == 0:
        x = torch.empty(2)
        if end == "leave":
            assert shared.receive(x) == 2  # rank 1 has left, rank 2 has not
        with pytest.raises(GroupError) as raised:
            shared.receive(x)
        return raised.value
    ranks.connection.recv()
    if rank == 2:
        time.sleep(0.5)
        shared.send(torch.ones(2), 0)
    shared.close()
    return None


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_when_the_senders_end(tmp_path, end):
    job = ranks.Ranks(waits_for_any, 3, tmp_path, end)
    for rank in range(3):
        assert job.report(rank) == "ready"
    if end == "leave":
        job.send(1)
        job.send(2)
        assert job.results()[0].reason == "left"
    else:
        os.kill(job.processes[1].pid, signal.SIGKILL)
        error = job.report(0)
        job.end()
        assert (error.reason, error.about) == ("ended", 1)


def with_torch(rank, size, store, backend):
    shm.register()
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    x = torch.full((3,), float(rank))
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            source = dist.recv(x)
            assert x.unique().tolist() == [float(source)]
            sources.add(source)
        assert sources == {*range(1, size)}
        work = dist.irecv(x, tag=3)
        work.wait()
        assert (work._source_rank(), x[0].item()) == (1, 7.0)
    else:
        dist.send(x, 0)
        if rank == 1:
            dist.send(torch.full((3,), 7.0), 0, tag=3)
    x = torch.ones(5)
    dist.all_reduce(x)
    assert x.unique().tolist() == [size]
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x, group=pair)
        assert x.unique().tolist() == [2 * size]
    dist.destroy_process_group()
    return "done"


@pytest.mark.parametrize("backend", ["cpu:opforge_shm", "cpu:opforge_shm,cuda:gloo", "opforge_shm"])
def test_torch_receives_from_any_rank(tmp_path, backend):
    assert ranks.run(with_torch, 3, tmp_path, backend) == ["done"] * 3
