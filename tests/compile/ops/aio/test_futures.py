"""Futures, and what happens to requests when tensors, queues, threads and processes go."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import sys
import threading

import pytest
import torch
from support.processes import forked_python

from opforge.ops import aio

BIG = 64 << 20


@pytest.fixture(scope="module")
def slow():
    """A queue that needs seconds for BIG."""
    with aio.Queue("threads", block_size=4096, depth=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def big_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("aio") / "big"
    path.touch()
    os.truncate(path, BIG)
    return path


def test_a_future_can_be_awaited(queue, tmp_path):
    async def copy():
        tensors = [torch.full((1000,), float(i)) for i in range(20)]
        paths = [tmp_path / str(i) for i in range(20)]
        await asyncio.gather(*(queue.write(*pair) for pair in zip(paths, tensors, strict=True)))
        back = await queue.read(paths, [torch.zeros(1000) for _ in paths])
        assert all(map(torch.equal, back, tensors))
        with pytest.raises(FileNotFoundError):
            await queue.read(tmp_path / "no", tensors[0])

    asyncio.run(copy())


def test_a_wait_has_a_time_limit_and_the_request_goes_on(slow, big_file):
    memory = torch.ones(BIG, dtype=torch.uint8)
    future = slow.read(big_file, memory)
    with pytest.raises(TimeoutError, match="not finished within"):
        future.result(0.001)
    assert not future.done()
    assert not future.result().any()
    assert future.done()
    assert not future.cancel()
    assert not future.cancelled()


def test_what_is_cancelled_ends_early(slow, big_file):
    memory = torch.ones(BIG, dtype=torch.uint8)
    first, second = slow.read(big_file, memory), slow.read(big_file, memory)
    assert second.cancel()
    assert first.cancel()
    for future in (first, second):
        with pytest.raises(concurrent.futures.CancelledError, match="was cancelled"):
            future.result(20)
        assert future.cancelled()
    assert memory.any()


def test_a_cancelled_task_cancels_its_request(slow, big_file):
    memory = torch.ones(BIG, dtype=torch.uint8)
    futures = []

    async def read():
        futures.append(slow.read(big_file, memory))
        await futures[0]

    async def main():
        task = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert futures[0].cancelled()


def test_numpy_is_not_needed(queue, tmp_path, monkeypatch):
    def missing(_tensor):
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", missing)
    queue.write(tmp_path / "file", torch.zeros(4)).result()
    assert (tmp_path / "file").read_bytes() == bytes(16)


def test_a_tensor_in_flight_cannot_be_freed_or_resized(slow, tmp_path):
    tensor = torch.randint(0, 256, (4 << 20,), dtype=torch.uint8)
    expected = tensor.clone().numpy().tobytes()  # numpy() itself makes a storage one that cannot be resized
    view = tensor[:]
    future = slow.write(tmp_path / "file", tensor)
    with pytest.raises(RuntimeError, match="not resizable"):
        view.untyped_storage().resize_(0)
    del tensor, view, future
    gc.collect()
    noise = [torch.full((4 << 20,), 7, dtype=torch.uint8) for _ in range(4)]
    slow.write(tmp_path / "next", noise[0][:1]).result()
    assert (tmp_path / "file").read_bytes() == expected


def test_a_tensor_is_let_go_when_its_request_has_ended(queue, tmp_path):
    tensor = torch.ones(10)
    queue.write(tmp_path / "file", tensor).result()
    queue.write(tmp_path / "file", torch.ones(1)).result()
    queue._sweep()
    assert not queue._pending
    assert sys.getrefcount(tensor) == 2


def test_a_queue_that_is_dropped_finishes_its_writes(tmp_path):
    queue = aio.Queue(block_size=4096, depth=2)
    queue.write(tmp_path / "file", torch.ones(1 << 20, dtype=torch.uint8))
    del queue
    gc.collect()
    assert (tmp_path / "file").read_bytes() == b"\1" * (1 << 20)


def test_a_queue_that_is_dropped_ends_its_threads_and_lets_tensors_go(tmp_path):
    threads, tensor = len(os.listdir("/proc/self/task")), torch.ones(10)
    references = sys.getrefcount(tensor)
    queue = aio.Queue("threads")
    queue.write(tmp_path / "file", tensor).result()
    del queue
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == threads
    assert sys.getrefcount(tensor) == references


def test_no_call_holds_the_interpreter_s_lock(slow, big_file):
    future, steps = slow.read(big_file, torch.empty(BIG, dtype=torch.uint8)), 0
    waiter = threading.Thread(target=future.exception)
    waiter.start()
    while waiter.is_alive() and steps < 1000:
        steps += 1
    future.cancel()
    waiter.join(20)
    assert steps == 1000
    assert not waiter.is_alive()


def test_threads_share_a_queue(queue, tmp_path):
    def copy(number):
        for turn in range(30):
            data = torch.full((1000,), number * 1000 + turn)
            queue.write(tmp_path / str(number), data).result()
            assert torch.equal(queue.read(tmp_path / str(number), torch.zeros_like(data)).result(), data)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for result in [pool.submit(copy, number) for number in range(4)]:
            result.result(60)


def run(code, *arguments):
    command = [forked_python.python(), "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_a_forked_child_uses_a_queue_of_its_own(tmp_path):
    code = """
import os, sys, torch
from opforge.builders.cpu.async_io import AsyncIOBuilder
from opforge.ops import aio
queue, path, handle = aio.Queue(), sys.argv[1], AsyncIOBuilder().load().aio_handle(queue_depth=2)
pending = queue.write(path, torch.ones(5 << 20, dtype=torch.uint8))
aio.write(path + "1", torch.ones(1)).result()
child = os.fork()
if not child:
    calls = lambda: queue.read(path, torch.ones(1)), lambda: handle.sync_pread(torch.ones(1), path), queue.registered
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            assert "before a fork: create one in this process" in str(error)
        else:
            raise AssertionError(call)
    aio.read(path + "1", torch.zeros(1)).result()
    del queue, handle, calls, call
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
pending.result()
"""
    run(code, tmp_path / "file")


def test_an_exit_finishes_writes_and_drops_reads(tmp_path, big_file):
    code = """
import sys, torch
from opforge.ops import aio
queue = aio.Queue(block_size=4096, depth=1)
for i in range(50):
    queue.read(sys.argv[2], torch.empty(64 << 20, dtype=torch.uint8))
aio.write(sys.argv[1], torch.ones(3 << 20, dtype=torch.uint8))
"""
    run(code, tmp_path / "file", big_file)
    assert (tmp_path / "file").read_bytes() == b"\1" * (3 << 20)
