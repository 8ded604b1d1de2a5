"""Ranks that are late, end, or disagree: an error on every rank, in time, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from support.processes import ranks

from opforge.errors import GroupError
from opforge.ops import shm

SLACK = 20.0
"""Seconds that a busy machine may need beyond what is tested."""


def group(rank, size, store, seconds=60.0):
    return shm.Group(dist.FileStore(store, size), rank, size, seconds)


def leftovers():
    return {name for name in os.listdir("/dev/shm") if "opforge" in name}


DTYPES = torch.ones(4, dtype=torch.int32), torch.ones(4)


def send_and_wait(shared):
    shared.send(torch.ones(2), 1)
    shared.barrier()


DISAGREEMENTS = {
    "sizes": (
        lambda shared, rank: shared.all_reduce(torch.ones(10 + 1_000_000 * rank)),
        "all_reduce of 10 float32 with sum",
        "all_reduce of 1000010 float32 with sum",
    ),
    "dtypes": (
        lambda shared, rank: shared.all_gather(DTYPES[rank].repeat(2), DTYPES[rank]),
        "all_gather of 4 int32",
        "all_gather of 4 float32",
    ),
    "operations": (
        lambda shared, rank: shared.all_reduce(torch.ones(3), ("max", "average")[rank]),
        "all_reduce of 3 float32 with max",
        "all_reduce of 3 float32 with average",
    ),
    "calls": (
        lambda shared, rank: shared.broadcast(torch.ones(3), 1) if rank else shared.barrier(),
        "barrier",
        "broadcast of 3 float32 from rank 1",
    ),
    "roots": (
        lambda shared, rank: shared.broadcast(torch.ones(3), rank),
        "broadcast of 3 float32 from rank 0",
        "broadcast of 3 float32 from rank 1",
    ),
    "parts": (
        lambda shared, rank: shared.all_to_all([torch.ones(2), torch.ones(2)], [torch.ones(2 + rank), torch.ones(2)]),
        "sends 3 float32 in all_to_all to",
        "expects 2",
    ),
    "messages": (
        lambda shared, rank: shared.receive(torch.ones(3), 0) if rank else send_and_wait(shared),
        "send of 2 float32",
        "send of 3 float32",
    ),
}


def disagree(rank, size, store, name):
    shared = group(rank, size, store)
    began = time.monotonic()
    with pytest.raises(GroupError) as first:
        DISAGREEMENTS[name][0](shared, rank)
    with pytest.raises(GroupError) as second:
        shared.barrier()
    assert time.monotonic() - began < SLACK
    assert (second.value.reason, second.value.problem) == (first.value.reason, first.value.problem)
    return first.value


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_disagree(tmp_path, name):
    for error in ranks.Ranks(disagree, 2, tmp_path, name).results():
        assert isinstance(error, GroupError) and error.reason == "disagree", error
        text = str(error).replace("this rank", "rank")
        assert all(part in text for part in DISAGREEMENTS[name][1:]), text
        assert "same calls in the same order. This group cannot be used any more" in text


def one_is_late(rank, size, store):
    shared = group(rank, size, store, 0.5)
    time.sleep(2.0 * (rank == 1))
    with pytest.raises(GroupError) as raised:
        shared.all_reduce(torch.ones(5))
    return raised.value


def test_a_late_rank(tmp_path):
    first, second, third = ranks.Ranks(one_is_late, 3, tmp_path).results()
    assert {error.reason for error in (first, second, third)} == {"late"}
    assert {error.about for error in (first, second, third)} == {1}
    assert "did not come to all_reduce within the timeout of " in str(first)
    assert "this rank (process " in str(second) and "raise the group's timeout" in str(second)


def until_it_fails(rank, size, store, when):
    shared = group(rank, size, store)
    x = torch.ones(3_000_000)
    for _ in range(3):
        shared.all_reduce(x, "max")
    ranks.connection.send("ready")
    if when == "before" and rank == 1:
        time.sleep(60)
    try:
        while True:
            shared.all_reduce(x, "max")
    except GroupError as error:
        return error


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_rank_that_is_killed(tmp_path, when):
    before = leftovers()
    job = ranks.Ranks(until_it_fails, 3, tmp_path, when)
    for rank in range(3):
        assert job.report(rank) == "ready"
    time.sleep(0.3)
    killed = time.monotonic()
    os.kill(job.processes[1].pid, signal.SIGKILL)
    first, second, third = job.results()
    assert time.monotonic() - killed < SLACK
    assert second is None
    for error in (first, third):
        assert (error.reason, error.about) == ("ended", 1)
        assert f"rank 1 (process {job.processes[1].pid}) has ended during all_reduce. See why it ended" in str(error)
    assert leftovers() == before


def end_after_a_call(rank, size, store):
    shared = group(rank, size, store)
    x = torch.full((1000,), float(rank))
    shared.all_reduce(x)
    if rank == 1:
        shared.send(x, 0)
        ranks.connection.send("sent")
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.connection.recv()  # until rank 1 is gone
    shared.receive(x, 1)  # what was sent is there
    assert x.unique().tolist() == [1.0]
    with pytest.raises(GroupError) as raised:
        shared.receive(x, 1)
    return raised.value


def test_a_rank_that_is_killed_after_a_call_has_sent_its_message(tmp_path):
    job = ranks.Ranks(end_after_a_call, 2, tmp_path)
    assert job.report(1) == "sent"
    job.processes[1].join()
    job.send(0)
    assert job.results()[0].reason == "ended"


def leave(rank, size, store):
    shared = group(rank, size, store)
    if rank == 1:
        shared.close()
        shared.close()
    with pytest.raises(GroupError) as raised:
        shared.barrier()
    return raised.value


def test_a_rank_that_leaves(tmp_path):
    first, second = ranks.Ranks(leave, 2, tmp_path).results()
    assert (first.reason, second.reason) == ("left", "closed")
    assert "has left the group, and this rank waits for it in barrier" in str(first)
    assert "it is closed. Make a new group" in str(second)


def fork(rank, size, store):
    shared = group(rank, size, store)
    child = os.fork()
    if not child:
        try:
            shared.barrier()
        except GroupError as error:
            os._exit(7 if error.reason == "fork" and "of which this is a fork" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    shared.barrier()  # the child's end is not this rank's
    return "done"


def test_a_fork_does_not_use_its_parents_group(tmp_path):
    assert ranks.run(fork, 2, tmp_path) == ["done"] * 2
