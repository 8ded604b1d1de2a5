"""What bad input and full disks get: one error with the path, and no wait without an end."""

from __future__ import annotations

import errno
import os
import re
import subprocess

import pytest
import torch
from support.processes import forked_python

from opforge.ops import aio

BYTES = torch.zeros(100, dtype=torch.uint8)


@pytest.fixture(scope="module")
def one_queue():
    with aio.Queue(block_size=4096, depth=1) as opened:
        yield opened


def raised(kind, future):
    with pytest.raises(kind) as caught:
        future.result(30)
    return caught.value


def test_a_missing_file(queue, tmp_path):
    error = raised(FileNotFoundError, queue.read(tmp_path / "no", BYTES))
    assert (error.errno, error.filename) == (errno.ENOENT, str(tmp_path / "no"))
    assert "read: No such file or directory: " in str(error)
    error = raised(FileNotFoundError, queue.write(tmp_path / "no" / "file", BYTES))
    assert "write: No such file or directory: create the folder first: " in str(error)


def test_a_directory_and_a_fifo(queue, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for call in (queue.read, queue.write):
        error = raised(IsADirectoryError, call(tmp_path, BYTES))
        assert error.filename == str(tmp_path)
        assert "Is a directory: expected a file" in str(error)
        error = raised(OSError, call(tmp_path / "fifo", BYTES))
        assert error.errno == errno.ESPIPE
        assert "not a regular file or a block device" in str(error)


def test_a_file_that_is_too_short(queue, tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    error = raised(OSError, queue.read(tmp_path / "file", BYTES, 2))
    assert error.errno == errno.ENODATA
    assert "read: the file has 5 bytes, and bytes up to 102 were requested" in str(error)
    rows = torch.zeros(2, 4, dtype=torch.uint8)
    assert raised(OSError, queue.read(tmp_path / "file", rows, torch.tensor([0, 2]))).errno == errno.ENODATA


def test_a_file_that_becomes_shorter(one_queue, tmp_path):
    path, memory = tmp_path / "file", torch.empty(128 << 20, dtype=torch.uint8)
    path.touch()
    os.truncate(path, len(memory))
    future = one_queue.read(path, memory)
    os.truncate(path, 10)
    error = raised(OSError, future)
    assert error.errno == errno.ENODATA
    assert re.search("the file ends here|the file has 10 bytes", str(error))


def test_the_first_error_of_a_list_is_raised_after_all_have_ended(queue, tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    future = queue.read([tmp_path / "a", tmp_path / "no", tmp_path / "neither"], [BYTES, BYTES, BYTES])
    assert raised(FileNotFoundError, future).filename == str(tmp_path / "no")
    assert future.done()


@pytest.mark.parametrize(
    ("tensor", "offset", "problem"),
    [
        (BYTES, -1, "offset -1: expected 0 or more"),
        (BYTES, 2**63 - 1, "beyond the largest file"),
        (torch.zeros(4, 4).t(), 0, "is not contiguous: pass its contiguous"),
        (torch.ones(2, dtype=torch.complex64).conj(), 0, "whose memory is not its value: pass its resolve_conj"),
        (torch.zeros(4, device="meta"), 0, "a tensor on meta: expected one on the CPU"),
        (torch.zeros(4).to_sparse(), 0, "not contiguous"),
        (torch.zeros(4, 2), torch.tensor([0, 8]), "expected int64 and one number for each row"),
        (torch.zeros(2, 2), torch.tensor([0, -8]), "offset -8"),
    ],
)
def test_a_tensor_or_offset_that_does_not_fit(one_queue, tmp_path, tensor, offset, problem):
    with pytest.raises(ValueError, match=problem):
        one_queue.write(tmp_path / "file", tensor, offset)
    assert not (tmp_path / "file").exists()


def test_lists_that_do_not_fit(one_queue):
    with pytest.raises(ValueError, match="2 paths and 1 tensors"):
        one_queue.read(["a", "b"], [BYTES])
    with pytest.raises(ValueError, match="2 paths and 1 offsets"):
        one_queue.read(["a", "b"], [BYTES, BYTES], [0])
    with pytest.raises(TypeError, match="list, expected a tensor"):
        one_queue.read("a", [BYTES])
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        one_queue.read("a", BYTES, 1.0)


def test_options_out_of_range():
    for options, problem in (
        ({"block_size": 0}, "block_size=0: expected a whole number from 1 to"),
        ({"block_size": 1e6}, "block_size=1000000.0: expected a whole number"),
        ({"depth": 0}, "depth=0"),
        ({"workers": -1}, "workers=-1"),
        ({"engine": "posix"}, "engine='posix': expected one of io_uring, libaio, threads"),
    ):
        with pytest.raises(ValueError, match=problem):
            aio.Queue(**options)


def test_a_block_size_of_no_power_of_two(tmp_path):
    data, back = torch.randint(0, 256, (100_001,), dtype=torch.uint8), torch.empty(100_001, dtype=torch.uint8)
    with aio.Queue(block_size=5000) as queue:
        queue.write(tmp_path / "file", data).result()
        assert torch.equal(queue.read(tmp_path / "file", back).result(), data)


def test_a_closed_queue_and_a_descriptor_that_is_none(tmp_path):
    queue = aio.Queue()
    with pytest.raises(OSError, match="Bad file descriptor"):
        queue.read(999, BYTES)
    future = queue.write(tmp_path / "file", BYTES)
    queue.close()
    queue.close()
    assert future.result() is BYTES
    with pytest.raises(RuntimeError, match="the queue is closed"):
        queue.read("file", BYTES)


def test_a_descriptor_that_appends(queue, tmp_path):
    with open(tmp_path / "file", "ab") as file:
        assert "the descriptor appends" in str(raised(OSError, queue.write(file.fileno(), BYTES)))


def test_a_full_disk(queue, tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        error = raised(OSError, queue.write(tmp_path / "file", torch.zeros(9 << 20, dtype=torch.uint8)))
        assert (error.errno, error.filename) == (errno.ENOSPC, str(tmp_path / "file"))
        assert "No space left on device: free some" in str(error)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def run(code, *arguments):
    command = [forked_python.python(), "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_limit_of_file_sizes(tmp_path):
    code = """
import resource, sys, torch
from opforge.ops import aio
queues = [aio.Queue(engine) for engine in ("threads", "")]
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
for queue in queues:
    print(queue.write(sys.argv[1], torch.zeros(3 << 20, dtype=torch.uint8)).exception())
"""
    for line in run(code, tmp_path / "file").splitlines():
        assert "[Errno 27]" in line
        assert "larger than this process (ulimit -f)" in line
