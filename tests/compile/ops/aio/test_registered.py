"""Locked memory that io_uring has registered: it gets the right bytes, and is let go with its last view."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import threading
import time

import pytest
import torch

from opforge.builders.cpu.pin_memory import PinMemoryBuilder
from opforge.ops import aio

MIB = 1 << 20
SIZE = 3 * MIB  # beyond what the account keeps for the next tensor
EXAMPLE = torch.empty(0, dtype=torch.uint8)


@pytest.fixture(scope="module")
def handle():
    return PinMemoryBuilder().load().pin_handle()


@pytest.fixture
def queue():
    if reason := aio.report()["io_uring"]:
        pytest.skip(reason)
    with aio.Queue("io_uring", block_size=64 << 10, depth=8) as opened:
        yield opened


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def new(handle, size=SIZE):
    """Returns locked memory; skips the test if the limit is too low for it."""
    try:
        return handle.new_cpu_locked_tensor(size, EXAMPLE)
    except OSError as error:
        pytest.skip(str(error))


def some_file(path, size=SIZE):
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    path.write_bytes(data.numpy().tobytes())
    return data


def register(queue, path, tensor):
    """Reads the file twice: the second time, its memory is registered. Skips the test if that is refused."""
    for _ in range(2):
        queue.read(path, tensor).result()
    size, problem = queue.registered()
    if problem:
        pytest.skip(problem)  # other tests of this user share the limit
    assert size >= tensor.nbytes


def pinned_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmPin"))


def released(queue):
    """Waits until the queue has registered nothing."""
    end = time.monotonic() + 20
    while queue.registered()[0] and time.monotonic() < end:
        time.sleep(0.001)
    return queue.registered()[0] == 0


def forget_requests(queue):
    """Has the queue drop the tensors of requests that have ended."""
    queue._sweep()
    gc.collect()


def test_memory_that_is_used_again_is_registered_until_its_last_view_is_gone(queue, handle, path):
    before, data, tensor = pinned_bytes(), some_file(path), new(handle)
    queue.read(path, tensor).result()
    assert queue.registered() == (0, "")
    register(queue, path, tensor)
    assert queue.registered() == (SIZE, "")
    assert pinned_bytes() == before + SIZE
    assert torch.equal(queue.read(path, tensor.zero_()).result(), data)
    queue.write(path, tensor.copy_(data.flip(0))).result()
    assert path.read_bytes() == data.flip(0).numpy().tobytes()
    view = tensor[5:7]
    del tensor
    forget_requests(queue)
    assert queue.registered()[0] == SIZE
    del view
    gc.collect()
    assert released(queue)
    assert pinned_bytes() == before


@pytest.mark.parametrize("size", [SIZE, 64 << 10], ids=["unmapped", "kept"])
def test_other_memory_at_the_same_address_gets_its_own_bytes(queue, handle, path, size):
    data, addresses = some_file(path, size), []
    for turn in range(4):
        tensor = new(handle, size)
        addresses.append(tensor.data_ptr())
        register(queue, path, tensor)
        tensor.fill_(turn)
        assert torch.equal(queue.read(path, tensor).result(), data)
        queue.write(path, tensor.fill_(turn)).result()
        assert path.read_bytes() == bytes([turn]) * size
        path.write_bytes(data.numpy().tobytes())
        del tensor
        forget_requests(queue)
    assert len(set(addresses)) < len(addresses)


def test_memory_that_is_unlocked_by_hand_still_gets_its_bytes(queue, handle, path):
    data, tensor = some_file(path), new(handle)
    register(queue, path, tensor)
    pending = [queue.read(path, tensor) for _ in range(3)]
    handle.free_cpu_locked_tensor(tensor)
    for future in pending:
        assert torch.equal(future.result(), data)
    assert torch.equal(queue.read(path, tensor.zero_()).result(), data)
    del tensor, pending, future
    forget_requests(queue)
    assert released(queue)


def test_views_rows_and_unaligned_parts(queue, handle, path):
    data, tensor = some_file(path), new(handle)
    register(queue, path, tensor)
    for begin, end in ((0, 5), (1, 70_001), (4096, 200_000), (SIZE - 7, SIZE)):
        tensor.zero_()
        assert torch.equal(queue.read(path, tensor[begin:end], begin).result(), data[begin:end])
        assert not tensor[:begin].any() and not tensor[end:].any()
    rows, offsets = tensor[: 128 * 4096].view(128, 4096), torch.randperm(SIZE // 4096)[:128] * 4096
    queue.read(path, rows, offsets).result()
    assert torch.equal(rows, data.view(-1, 4096)[offsets // 4096])
    halves = tensor.view(torch.bfloat16)[1000:2000]
    assert torch.equal(queue.read(path, halves).result().view(torch.uint8), data[:2000])


def test_large_memory_is_registered_in_parts(handle, path):
    size = 130 * MIB
    tensor, places = new(handle, size), [0, 64 * MIB - 5000, 64 * MIB, 128 * MIB - 1, size - 8192]
    path.touch()
    os.truncate(path, size)
    descriptor = os.open(path, os.O_RDWR)
    for place in places:
        os.pwrite(descriptor, os.urandom(8192), place)
    with aio.Queue("io_uring", block_size=1000 * 1024, depth=8, workers=2) as queue:
        queue.read(path, tensor[: 64 * MIB]).result()
        for _ in range(3):
            queue.read(path, tensor.fill_(1)).result()
        registered, problem = queue.registered()
        assert registered >= 64 * MIB or problem
    for place in places:
        assert tensor[place : place + 8192].numpy().tobytes() == os.pread(descriptor, 8192, place)
    assert queue.registered()[0] == 0
    os.close(descriptor)


def test_what_ends_early_leaves_registered_memory_usable(handle, path):
    data, tensor = some_file(path), new(handle)
    with aio.Queue("io_uring", block_size=4096, depth=1) as queue:
        register(queue, path, tensor)
        futures = [queue.read(path, tensor) for _ in range(5)]
        for future in futures[1:]:
            future.cancel()
        futures[0].result()
        os.truncate(path, SIZE - 5000)
        with pytest.raises(OSError, match=f"the file has {SIZE - 5000} bytes"):
            queue.read(path, tensor).result()
        future = queue.read(path, tensor[: SIZE - 5000])
        os.truncate(path, 10)
        with pytest.raises(OSError, match=r"the file ends here|the file has 10 bytes"):
            future.result()
        with pytest.raises(FileNotFoundError):
            queue.read(path.with_name("no"), tensor).result()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
        try:
            with pytest.raises(OSError, match="ulimit -f"):
                queue.write(path.with_name("large"), tensor).result()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        path.write_bytes(data.numpy().tobytes())
        assert torch.equal(queue.read(path, tensor).result(), data)
        assert queue.registered() == (SIZE, "")


def test_after_a_fork_both_processes_read_into_their_own_memory(queue, handle, path):
    data, tensor = some_file(path), new(handle)
    register(queue, path, tensor)
    child = os.fork()
    if not child:  # OpenMP's threads are the parent's: small tensors need none
        signal.alarm(60)
        try:
            ctypes.memset(tensor.data_ptr(), 9, SIZE)
            ours = aio.read(path, tensor[:4096], 4096).result().numpy().tobytes()
            code = int(
                ours != data[4096:8192].numpy().tobytes() or bytes(tensor[4096:5000].tolist()) != bytes([9]) * 904
            )
            del tensor
            gc.collect()
            os._exit(code)
        finally:
            os._exit(2)
    for _ in range(5):
        assert torch.equal(queue.read(path, tensor.zero_()).result(), data)  # zero_ copies pages that are shared
        queue.write(path.with_name("copy"), tensor.neg_()).result()
        assert path.with_name("copy").read_bytes() == tensor.numpy().tobytes()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert queue.registered() == (SIZE, "")
    assert torch.equal(queue.read(path, tensor.zero_()).result(), data)


def test_threads_register_and_free_at_once(handle, path):
    data = some_file(path, MIB)
    wrong = []

    def work(number):
        for turn in range(40):
            size = (turn % 5 + 1) * (100_000 + number)
            tensor, expected = new(handle, size), data[turn : turn + size]
            reads = [queue.read(path, tensor.zero_(), turn).result() for _ in range(4)]
            wrong.extend((number, turn) for read in reads if not torch.equal(read, expected))

    with aio.Queue("io_uring", block_size=64 << 10, depth=4, workers=2) as queue:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong
        forget_requests(queue)
        assert released(queue)


def test_a_closed_or_dropped_queue_has_nothing_registered(handle, path):
    before, tensor = pinned_bytes(), new(handle)
    some_file(path)
    queue = aio.Queue("io_uring")
    register(queue, path, tensor)
    queue.close()
    assert queue.registered() == (0, "")
    assert pinned_bytes() == before
    queue = aio.Queue("io_uring")
    register(queue, path, tensor)
    del queue
    gc.collect()
    assert pinned_bytes() == before


def test_other_memory_and_other_engines_register_nothing(handle, path):
    data, tensor = some_file(path), new(handle)
    with aio.Queue("threads") as threads, aio.Queue() as queue:
        for _ in range(4):
            assert torch.equal(threads.read(path, tensor.zero_()).result(), data)
            assert torch.equal(queue.read(path, torch.zeros(SIZE, dtype=torch.uint8)).result(), data)
        assert threads.registered() == queue.registered() == (0, "")
