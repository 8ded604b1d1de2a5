"""What a group sees of ranks that ended, and what it leaves behind, in the rarer orders of events."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import struct
import threading
import time

import pytest
import torch
import torch.distributed as dist
from support.processes import ranks

from opforge.errors import GroupError
from opforge.ops import shm
from opforge.ops.host_op import host_op
from opforge.ops.shm import failure

SLACK = 20.0
"""Seconds that a busy machine may need beyond what is tested."""


def group(rank, size, store, seconds=60.0):
    return shm.Group(dist.FileStore(store, size), rank, size, seconds)


def behind_a_late_rank(rank, size, store):
    shared = group(rank, size, store)
    ranks.connection.send("ready")
    ranks.connection.recv()
    if rank == 1:
        began = time.monotonic()
        with pytest.raises(GroupError) as raised:
            shared.all_reduce(torch.ones(3))
        assert time.monotonic() - began < SLACK
        return raised.value
    return None


def test_a_rank_that_ended_is_seen_while_another_is_late(tmp_path):
    """Rank 1 waits for rank 0, which does not come, and must see that rank 2 never will."""
    job = ranks.Ranks(behind_a_late_rank, 3, tmp_path)
    try:
        for rank in range(3):
            assert job.report(rank) == "ready"
        os.kill(job.processes[2].pid, signal.SIGKILL)
        job.send(1)
        error = job.report(1)
        assert isinstance(error, GroupError), error
        assert (error.reason, error.about) == ("ended", 2)
    finally:
        job.end()


def without_descriptors(rank, size, store):
    shared = group(rank, size, store)
    if rank == 0:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/dev/null", os.O_RDONLY)
    else:
        time.sleep(1)
    x = torch.ones(3)
    shared.all_reduce(x)
    return x.tolist()


def test_a_rank_without_descriptors_does_not_take_its_peer_for_dead(tmp_path):
    assert ranks.run(without_descriptors, 2, tmp_path) == [[2.0] * 3] * 2


def killed_after_it_made_the_memory(rank, size, store):
    from opforge.ops.shm import rendezvous

    if rank == 0:
        make = rendezvous.Rendezvous._make

        def make_and_end(self):
            make(self)
            os.kill(os.getpid(), signal.SIGKILL)

        rendezvous.Rendezvous._make = make_and_end
    else:
        get = rendezvous.Rendezvous._get

        def get_late(self, name, rank):
            value = get(self, name, rank)
            time.sleep(1)
            return value

        rendezvous.Rendezvous._get = get_late
    with pytest.raises(GroupError) as raised:
        group(rank, size, store)
    return raised.value


def test_rank_0_is_killed_before_the_others_have_opened_its_memory(tmp_path):
    first, second = ranks.Ranks(killed_after_it_made_the_memory, 2, tmp_path).results()
    assert first is None
    assert (second.reason, second.about) == ("ended", 0)
    assert "rank 0 (process " in str(second) and "has ended during the group's creation" in str(second)


def test_a_failure_that_another_rank_writes_at_the_moment_is_waited_for():
    """It was reported as that of a rank which ended while it wrote the failure."""
    op, descriptor, handle = host_op("ShareMemCommBuilder"), ctypes.c_int(), ctypes.c_void_p()
    processes = (ctypes.c_uint32 * 2)(os.getpid(), os.getpid())
    started = (ctypes.c_uint64 * 2)(*[op.shm_start_time(os.getpid())] * 2)
    assert op.shm_create(2, 5, processes, started, ctypes.byref(descriptor)) == 0
    memory = mmap.mmap(descriptor.value, 4096)
    assert op.shm_attach(descriptor.value, 2, 0, 5, ctypes.byref(handle)) == 0
    os.close(descriptor.value)
    state, late = 16, 1
    memory[state : state + 4] = struct.pack("I", 1)

    def finish():
        time.sleep(0.05)
        memory[state + 8 : state + 24] = struct.pack("IIII", late, 1, 0, 7)
        memory[state : state + 4] = struct.pack("I", 2)

    thread = threading.Thread(target=finish)
    thread.start()
    error = failure.error(op, handle.value, 0, 2, 1.0)
    thread.join()
    assert (error.reason, error.about) == ("late", 0)
    op.shm_delete(handle)


def groups_in_a_row(rank, size, store):
    shm.register()
    dist.init_process_group("cpu:opforge_shm", init_method=f"file://{store}", rank=rank, world_size=size)
    before = threading.active_count()
    for _ in range(5):
        other = dist.new_group([0, 1])
        x = torch.ones(3)
        dist.all_reduce(x, group=other, async_op=True).wait()
        if rank == 0:
            dist.send(x, 1, group=other)
        else:
            dist.recv(x, 0, group=other)
        dist.destroy_process_group(other)
    deadline = time.monotonic() + SLACK
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    after = threading.active_count()
    dist.destroy_process_group()
    return after - before


def test_threads_end_with_their_group(tmp_path):
    assert ranks.run(groups_in_a_row, 2, tmp_path) == [0, 0]


def store_that_ends(rank, size, store):
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ranks.connection.send(server.port)
        time.sleep(60)
    client = dist.TCPStore("127.0.0.1", ranks.connection.recv(), is_master=False)
    ranks.connection.send("ready")
    began = time.monotonic()
    with pytest.raises(GroupError) as raised:
        shm.Group(client, rank, size, 60.0)
    assert time.monotonic() - began < SLACK
    return raised.value


def test_a_store_that_ends_while_the_group_is_made(tmp_path):
    """It was reported as a rank that did not come within a timeout which had not passed."""
    job = ranks.Ranks(store_that_ends, 2, tmp_path)
    job.send(1, job.report(0))
    assert job.report(1) == "ready"
    time.sleep(0.5)
    os.kill(job.processes[0].pid, signal.SIGKILL)
    _, error = job.results()
    assert isinstance(error, GroupError), error
    assert error.reason == "setup" and "the store of the group failed: " in str(error)
