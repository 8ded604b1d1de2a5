"""What reads and writes move, with each engine: any size, any alignment, parts of files, rows, many files."""

from __future__ import annotations

import itertools
import os
import subprocess

import pytest
import torch
from support.processes import forked_python

from opforge.ops import aio

SIZES = (0, 1, 511, 4096, 8193, 300_007)


def some_bytes(size, shift=0):
    """Returns random bytes that begin `shift` bytes after a page, as tensors of torch begin 64 after one."""
    memory = torch.randint(0, 256, (size + 8192,), dtype=torch.uint8)
    begin = -memory.data_ptr() % 4096 + shift
    return memory[begin : begin + size]


def content(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize("shift", [0, 64, 3])
def test_every_size_at_every_offset_is_what_was_written(queue, tmp_path, shift):
    path = tmp_path / "file"
    for size in SIZES:
        for offset in (0, 5, 4096):
            path.write_bytes(b"x" * offset)
            data, back = some_bytes(size, shift), some_bytes(size, shift)
            assert queue.write(path, data, offset).result() is data
            assert content(path) == b"x" * offset + data.numpy().tobytes(), (size, offset)
            assert torch.equal(queue.read(path, back, offset).result(), data), (size, offset)


def test_a_write_leaves_the_bytes_around_it(queue, tmp_path):
    path, before, data = tmp_path / "file", some_bytes(50_000), some_bytes(20_001)
    path.write_bytes(before.numpy().tobytes())
    queue.write(path, data, 4999).result()
    before[4999:25_000] = data
    assert content(path) == before.numpy().tobytes()


def test_adjacent_writes_at_once_do_not_disturb_each_other(queue, tmp_path):
    path, data = tmp_path / "file", some_bytes(1_000_000)
    cuts = sorted({0, 1_000_000, *torch.randint(1, 1_000_000, (60,)).tolist()})
    futures = [queue.write(path, data[a:b], a) for a, b in itertools.pairwise(cuts)]
    for future in futures:
        future.result()
    assert content(path) == data.numpy().tobytes()


def test_rows_come_from_their_offsets(queue, tmp_path):
    path, data = tmp_path / "file", some_bytes(200_000)
    path.write_bytes(data.numpy().tobytes())
    offsets = (
        torch.randint(0, 200_000 - 512, (300,))
        // torch.tensor([1, 512]).repeat(150)
        * torch.tensor([1, 512]).repeat(150)
    )
    rows = torch.empty(300, 512, dtype=torch.uint8)
    queue.read(path, rows, offsets).result()
    assert torch.equal(rows, torch.stack([data[at : at + 512] for at in offsets.tolist()]))


def test_without_o_direct_the_bytes_are_the_same(engine, tmp_path):
    data, back = some_bytes(300_007), some_bytes(300_007)
    with aio.Queue(engine, direct=False, workers=2) as queue:
        queue.write(tmp_path / "file", data).result()
        assert torch.equal(queue.read(tmp_path / "file", back).result(), data)


def test_two_workers_share_a_request(engine, tmp_path):
    data, back = some_bytes(3_000_001), some_bytes(3_000_001)
    with aio.Queue(engine, block_size=4096, depth=3, workers=2) as queue:
        queue.write(tmp_path / "file", data).result()
        assert torch.equal(queue.read(tmp_path / "file", back).result(), data)


def test_ten_thousand_requests_at_once_need_few_descriptors(tmp_path):
    queue = aio.Queue()
    data, back = some_bytes(10_000).view(-1, 1), torch.zeros(10_000, 1, dtype=torch.uint8)
    path = tmp_path / "file"
    for future in [queue.write(path, row, i) for i, row in enumerate(data)]:
        future.result()
    assert content(path) == data.numpy().tobytes()
    paths = [tmp_path / str(i) for i in range(1500)]
    queue.write(paths, list(data[:1500])).result()
    for future in [queue.read(path, row, i) for i, row in enumerate(back)]:
        future.result()
    assert torch.equal(back, data)
    assert {content(path) for path in paths[:5]} <= {bytes([value]) for value in range(256)}
    assert len(os.listdir("/proc/self/fd")) < 200


def test_lists_have_an_offset_for_each_file(queue, tmp_path):
    tensors = [torch.arange(5), torch.ones(3, dtype=torch.bfloat16), torch.zeros(2, 2)]
    paths = [str(tmp_path / str(i)) for i in range(3)]
    assert queue.write(paths, tensors, [0, 7, 8]).result() is tensors
    back = [torch.full_like(tensor, 9) for tensor in tensors]
    queue.read(paths, back, [0, 7, 8]).result()
    assert all(map(torch.equal, back, tensors))


def test_a_sparse_file_is_read_as_zeros(queue, tmp_path):
    path, back = tmp_path / "sparse", torch.ones(100_005, dtype=torch.uint8)
    path.touch()
    os.truncate(path, 100_005)
    assert not queue.read(path, back).result().any()


@pytest.mark.parametrize("flags", [0, os.O_DIRECT])
def test_a_descriptor_is_used_and_stays_open(queue, tmp_path, flags):
    data, back = some_bytes(10_001, 64), torch.zeros(10_001, dtype=torch.uint8)
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | flags)
    queue.write(descriptor, data).result()
    pending = queue.read(descriptor, back)
    os.close(descriptor)
    assert torch.equal(pending.result(), data)


def test_a_read_counts_as_a_change_for_autograd(queue, tmp_path):
    weight = torch.ones(4, requires_grad=True)
    queue.write(tmp_path / "file", torch.zeros(4)).result()
    loss = (weight * weight).sum()
    with torch.no_grad():
        queue.read(tmp_path / "file", weight).result()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_memory_beyond_the_tensor_stays_below_64_mib(tmp_path):
    path, size = tmp_path / "sparse", 256 << 20
    path.touch()
    os.truncate(path, size)
    code = """
import sys, torch
from opforge.ops import aio
from opforge.builders.cpu.pin_memory import PinMemoryBuilder

def value(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

size, kinds = int(sys.argv[2]), [torch.ones(int(sys.argv[2]), dtype=torch.uint8)]
try:
    kinds += [PinMemoryBuilder().load().pin_handle().new_cpu_locked_tensor(size, kinds[0])]
except OSError:
    pass  # the limit of locked memory
for tensor in kinds:
    with aio.Queue(workers=2) as queue, open("/proc/self/clear_refs", "w") as peak:
        queue.read(sys.argv[1], tensor[:1]).result()
        peak.write("5")  # the peak begins here
        peak.flush()
        before = value("VmRSS")
        for _ in range(3):
            queue.read(sys.argv[1], tensor).result()
        print(value("VmHWM") - before)
"""
    command = [forked_python.python(), "-c", code, str(path), str(size)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert all(int(line) < 64 << 20 for line in result.stdout.splitlines()), result.stdout
