"""Making a group: ranks that do not come or are elsewhere, memory that cannot be had, and two jobs at once."""

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
