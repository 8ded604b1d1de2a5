"""Ranks that are late, end, or disagree: an error on every rank, in time, and nothing is left behind."""

from __future__ import annotations

import ctypes
import os
import resource
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


def never_comes(rank, size, store):
    if rank == 1:
        return None
    began = time.monotonic()
    with pytest.raises(GroupError) as raised:
        group(rank, size, store, 1.0)
    assert time.monotonic() - began < SLACK
    return raised.value


def test_a_rank_that_never_comes(tmp_path):
    first, _, third = ranks.Ranks(never_comes, 3, tmp_path).results()
    assert first.reason == third.reason == "late"
    assert "rank 1 did not come to the group's creation within 1 seconds" in str(first)


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


def killed_in_creation(rank, size, store):
    if rank == 1:
        from opforge.ops.shm import rendezvous

        rendezvous.Rendezvous._open = lambda self: os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(GroupError) as raised:
        group(rank, size, store)
    return raised.value


def test_a_rank_that_is_killed_while_the_group_is_made(tmp_path):
    first, second, third = ranks.Ranks(killed_in_creation, 3, tmp_path).results()
    assert second is None
    for error in (first, third):
        assert (error.reason, error.about) == ("ended", 1)
        assert "has ended during the group's creation" in str(error)


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


def no_memory(rank, size, store):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with pytest.raises(GroupError) as raised:
        group(rank, size, store)
    return raised.value


def test_memory_that_cannot_be_had(tmp_path):
    for error in ranks.Ranks(no_memory, 2, tmp_path).results():
        assert error.reason == "setup"
        assert "the shared memory cannot be used: [Errno 27] File too large" in str(error)


def elsewhere(rank, size, store):
    if rank == 1:
        from opforge.ops.shm import rendezvous

        here = rendezvous._this_process()
        rendezvous._this_process = lambda: {**here, "host": "another"}
    with pytest.raises(GroupError) as raised:
        group(rank, size, store)
    return raised.value


def test_ranks_of_two_hosts(tmp_path):
    for error in ranks.Ranks(elsewhere, 2, tmp_path).results():
        assert (error.reason, error.about) == ("elsewhere", 1)
        assert 'rank 1 is on another host than rank 0. Use "gloo" for ranks of several hosts' in str(error)


def two_jobs(rank, size, store, number):
    shared = group(rank, size, store)
    ranks.connection.send("ready")
    ranks.connection.recv()
    for _ in range(20):
        x = torch.full((50_000,), float(number))
        shared.all_reduce(x)
        assert x.unique().tolist() == [size * float(number)]
    return "done"


def test_two_jobs_at_once_under_one_port(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    jobs = [ranks.Ranks(two_jobs, 2, tmp_path, number, name=f"job{number}") for number in range(2)]
    for job in jobs:
        assert [job.report(rank) for rank in range(2)] == ["ready"] * 2
    for job in jobs:
        job.send(0)
        job.send(1)
    assert [job.results() for job in jobs] == [["done"] * 2] * 2


UNSHARE_MOUNTS, PRIVATE = 0x20000, 0x44000


def with_a_full_dev_shm(rank, size, store):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(UNSHARE_MOUNTS) or libc.mount(b"none", b"/", None, PRIVATE, None):
        return "no mounts here"
    if libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, b"size=8m"):
        return "no mounts here"
    with open("/dev/shm/full", "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(1 << 20))
    shared = group(rank, size, store)
    x = torch.ones(3_000_000)
    shared.all_reduce(x)
    assert x.unique().tolist() == [size]
    return os.listdir("/dev/shm")


def test_a_full_dev_shm_does_not_matter(tmp_path):
    outcomes = ranks.run(with_a_full_dev_shm, 2, tmp_path)
    if "no mounts here" in outcomes:
        pytest.skip("needs the right to mount a tmpfs")
    assert outcomes == [["full"]] * 2
