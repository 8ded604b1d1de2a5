"""Engines and registrations that filters of system calls and limits refuse: another way is used, and reported."""

from __future__ import annotations

import os
import subprocess

import pytest
from support import other_user, owners
from support.processes import forked_python

from opforge.ops import aio

REFUSE = """
import ctypes, struct, sys
libc = ctypes.CDLL(None)
numbers = [int(number) for number in sys.argv[1].split(",")]
rules = [(0x20, 0, 0, 0)]  # load the call's number
rules += [(0x15, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
rules += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]  # allow; EPERM
code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
memory = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("rules", ctypes.c_void_p)]
program = Program(len(rules), ctypes.addressof(memory))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program)) == 0
import torch
from opforge.ops import aio
"""
ENGINES = """
print(aio.Queue().engine, aio.report())
aio.write(sys.argv[2], torch.ones(5)).result()
"""
REGISTERED = """
import resource, sys, os, torch
from opforge.builders.cpu.pin_memory import PinMemoryBuilder
from opforge.ops import aio

path, size = sys.argv[2], 40960  # with three small rings, which some kernels count too, 64 KiB
content = os.urandom(size)
with open(path, "wb") as file:
    file.write(content)
os.chmod(path, 0o644)
handle, opened = PinMemoryBuilder().load().pin_handle(), aio.Queue("io_uring")
opened.close()

def read(queue, times):
    for _ in range(times):
        assert queue.read(path, tensor.zero_()).result().numpy().tobytes() == content
    return queue.registered()
"""
HERE = "tensor = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))"
only_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the system calls are x86-64's")


def run(code, *arguments):
    command = [forked_python.python(), "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def skip_without_uring():
    if reason := aio.report()["io_uring"]:
        pytest.skip(reason)


@only_x86
def test_a_refused_engine_is_reported_and_the_next_is_used(tmp_path):
    printed = run(REFUSE + ENGINES, "425", tmp_path / "file")
    assert not printed.startswith("io_uring")
    assert "seccomp" in printed
    printed = run(REFUSE + ENGINES, "425,206", tmp_path / "file")
    assert printed.startswith("threads {'io_uring': 'refused")
    assert (tmp_path / "file").stat().st_size == 20


@only_x86
def test_a_filter_that_allows_rings_but_no_registration(tmp_path):
    skip_without_uring()
    printed = run(REFUSE + REGISTERED + HERE + "\nprint(read(aio.Queue('io_uring'), 20))", "427", tmp_path / "file")
    assert printed == "(0, 'Operation not permitted')\n"


LIMITED = """
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 1 << 20))
os.setuid(65534)
tensor = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
first, second, third = [aio.Queue("io_uring", depth=8) for _ in range(3)]
print(*read(first, 5))
print(*read(second, 20))
first.close()
print(*read(second, 100))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 1 << 20))
print(*read(third, 20))
"""


@owners.as_root
def test_a_user_who_may_lock_64_kib_registers_as_much_and_reads_the_rest_as_well():
    skip_without_uring()
    with other_user.shared_folder(0o755) as folder:
        first, second, later, lower = run(REGISTERED + LIMITED, "", os.path.join(folder, "file")).splitlines()
    if "this kernel" in first:
        pytest.skip(first)
    refusal = "the limit of locked memory, which the user's processes share: raise it (`ulimit -l`)"
    assert first == "40960 "
    assert second == f"0 {refusal}"
    assert later == f"40960 {refusal}"
    assert lower == f"0 {refusal}"


FORBIDDEN = """
import os, sys, torch
from opforge.ops import aio

tensor, folder = torch.zeros(5), sys.argv[1]
aio.Queue().close()
os.setuid(65534)
print(aio.read(os.path.join(folder, "mine"), tensor).exception())
print(aio.write(os.path.join(folder, "mine"), tensor).exception())
print(aio.write(os.path.join(folder, "new"), tensor).exception())
"""


@owners.as_root
def test_files_that_this_user_may_not_use():
    with other_user.shared_folder(0o755) as folder:
        with open(os.open(os.path.join(folder, "mine"), os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("x" * 20)
        read, write, create = run(FORBIDDEN, folder).splitlines()
        assert "[Errno 13] read: Permission denied: this user may not read it, or not enter a folder of its" in read
        assert "[Errno 13] write: Permission denied: this user may not write it" in write
        assert "[Errno 13] write: Permission denied" in create
        assert os.listdir(folder) == ["mine"]
