"""Cases of asynchronous files: whole files and random blocks, on the disk and in memory, beside fio and DeepSpeed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import OURS, Call, Case, MissingError, Place, Prepared, Seconds
from opforge.ops.cases.rivals import DEEPSPEED, deepspeed

if TYPE_CHECKING:
    from torch import Tensor

MIB, ROW = 1 << 20, 4096
FIO_URING, FIO_LIBAIO = "fio io_uring", "fio libaio"
FIO = (FIO_URING, FIO_LIBAIO)
TORCHS = f"{OURS}, torch's memory"
SPREAD = f"{OURS}, into 128 MiB"
RANDOM_FILE, RANDOM_DEPTH = 256 * MIB, 128
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # its files live in a temporary folder of their own


class Job(NamedTuple):
    """A file, and how it is read or written."""

    place: Place
    path: str
    size: int
    """Bytes of the file."""
    verb: str
    """read or write"""
    depth: int
    direct: bool


def _job(verb: str, depth: int, in_memory: bool, place: Place, size: int = 0) -> Job:
    """Creates the file, with contents that no file system can leave out."""
    folder, size = place.folder, size or place.size
    if in_memory:
        if not os.path.isdir(SHARED_MEMORY):
            raise MissingError(f"there is no {SHARED_MEMORY}")
        folder = place.stack.enter_context(tempfile.TemporaryDirectory(dir=SHARED_MEMORY))
    if shutil.disk_usage(folder).free < 2 * size:
        raise MissingError(f"{folder} has less than {2 * size / 2**30:.1f} GiB free")
    path = os.path.join(folder, "file")
    part = torch.randint(0, 256, (min(size, 16 * MIB),), dtype=torch.uint8).numpy()
    with open(path, "wb") as file:
        for begin in range(0, size, len(part)):
            file.write(part[: size - begin].data)
        file.flush()
        os.fsync(file.fileno())
    return Job(place, path, size, verb, depth, not in_memory)


def _locked(size: int) -> Tensor:
    from opforge.builders.cpu.pin_memory import PinMemoryBuilder

    try:
        tensor: Tensor = (
            PinMemoryBuilder().load().pin_handle().new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        )
    except OSError as error:
        raise MissingError(f"{size} bytes cannot be locked: {error.strerror or error}") from error
    return tensor


def _queue(job: Job) -> Any:
    from opforge.ops.aio.queue import Queue

    return job.place.stack.enter_context(Queue(depth=job.depth))


def _whole(locked: bool, inputs: Prepared) -> Call:
    job = inputs.arguments
    tensor = _locked(job.size) if locked else torch.ones(job.size, dtype=torch.uint8)
    transfer = getattr(_queue(job), job.verb)
    return lambda: transfer(job.path, tensor).result()


def _deepspeed(inputs: Prepared) -> Call:
    job = inputs.arguments
    if not job.direct:
        raise MissingError("it opens files with O_DIRECT only, which this file system may not have")
    op = deepspeed(job.place, "deepspeed.ops.op_builder", "AsyncIOBuilder").AsyncIOBuilder().load()
    handle = op.aio_handle(MIB, job.depth, False, True, 1)
    tensor = handle.new_cpu_locked_tensor(job.size, torch.empty(0, dtype=torch.uint8))
    transfer = handle.sync_pread if job.verb == "read" else handle.sync_pwrite

    def call() -> None:
        if transfer(tensor, job.path, 0) != 1:
            raise OSError(f"{job.path}: DeepSpeed's {job.verb} failed")

    return call


def _fio(engine: str, options: Callable[[Job], list[str]], done: Callable[[Job], int], inputs: Prepared) -> Call:
    """Returns a run of fio, which measures itself: the time of its transfers, without its start."""
    if shutil.which("fio") is None:
        raise MissingError("not installed: apt install fio")
    if inputs.place.quick and engine == "libaio":
        raise MissingError("not with --quick: each sample starts a process")
    job = inputs.arguments
    command = ["fio", "--output-format=json", "--name=bench", f"--filename={job.path}", f"--size={job.size}"]
    command += [f"--ioengine={engine}", f"--iodepth={job.depth}", f"--direct={int(job.direct)}", *options(job)]

    def call() -> Seconds:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise MissingError(f"fio failed: {(process.stderr or process.stdout).strip().splitlines()[-1]}")
        output = process.stdout
        report = json.loads(output[output.index("{") :])["jobs"][0]
        # Of the transfers alone: the process also parses its options and prints a report.
        processor = report["job_runtime"] / 1e3 * (report["usr_cpu"] + report["sys_cpu"]) / 100
        return Seconds(done(job) / report[job.verb]["bw_bytes"], processor)

    return call


def _random(spread: bool, inputs: Prepared) -> Call:
    """Returns reads from random places, each in one list of offsets.

    As fio does, they go into the same 128 blocks of memory again and again, which stay in the processor's cache; or,
    with `spread`, each into a block of its own.
    """
    job = inputs.arguments
    queue, count = _queue(job), job.place.size
    memory = _locked((count if spread else RANDOM_DEPTH) * ROW).view(-1, ROW)
    random = torch.Generator().manual_seed(0)
    offsets = torch.randint(0, job.size // ROW, (count,), generator=random) * ROW
    parts = [offsets] if spread else list(torch.split(offsets, RANDOM_DEPTH))

    def call() -> None:
        for future in [queue.read(job.path, memory[: len(part)], part) for part in parts]:
            future.result()

    return call


def _is_read_back(loaded: Any, _device: str) -> None:
    written = torch.randint(0, 256, (3 * 4096 + 17,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "file")
        handle = loaded.aio_handle()
        handle.sync_pwrite(written, path)
        with open(path, "rb") as file:
            assert file.read() == written.numpy().tobytes(), "the file has other bytes than the tensor"
        read = torch.zeros_like(written)
        handle.sync_pread(read, path)
    assert torch.equal(read, written), "other bytes were read than were written"


def _whole_case(verb: str, depth: int, in_memory: bool = False, quick: bool = False) -> Case:
    rivals: dict[str, Callable[[Prepared], Call]] = {TORCHS: partial(_whole, False)}
    for name in FIO:
        rivals[name] = partial(_fio, name.split()[1], lambda job: ["--bs=1M", f"--rw={job.verb}"], lambda job: job.size)
    rivals[DEEPSPEED] = _deepspeed
    goals = {"baseline": 0.85} if in_memory else {"baseline": 0.97, DEEPSPEED: 1.1 if verb == "read" else 1.0}
    return Case(
        f"{verb}, depth {depth}, {'tmpfs' if in_memory else 'O_DIRECT'}",
        partial(_job, verb, depth, in_memory),
        checks={"what was written is read back": _is_read_back} if quick else {},
        sizes=(16 * MIB, 64 * MIB, 256 * MIB) if in_memory else (16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB),
        ours=partial(_whole, True),
        rivals=rivals,
        baseline=FIO,
        amount=lambda size, itemsize: size,
        size_unit="bytes",
        dtypes=("uint8",),
        quick=(64 * MIB,) if quick else (),
        goals=goals,
    )


def _random_case() -> Case:
    rivals: dict[str, Callable[[Prepared], Call]] = {SPREAD: partial(_random, True)}
    for name in FIO:
        rivals[name] = partial(
            _fio,
            name.split()[1],
            lambda job: ["--bs=4k", "--rw=randread", "--norandommap", f"--io_size={job.place.size * ROW}"],
            lambda job: job.place.size * ROW,
        )
    return Case(
        "random reads of 4 KiB, depth 128, O_DIRECT",
        lambda place: _job("read", RANDOM_DEPTH, False, place, RANDOM_FILE),
        sizes=(1 << 13, 1 << 15),
        ours=partial(_random, False),
        rivals=rivals,
        baseline=FIO,
        amount=lambda size, itemsize: size,
        unit="1000/s",
        size_unit="reads",
        dtypes=("uint8",),
        quick=(1 << 13,),
        goals={"baseline": 0.95},
        processor_goals={FIO_URING: 1.3},
    )


ASYNC_IO = (
    _whole_case("read", 32, quick=True),
    _whole_case("read", 128),
    _whole_case("write", 32),
    _whole_case("write", 128),
    _random_case(),
    _whole_case("read", 32, in_memory=True),
    _whole_case("write", 32, in_memory=True),
)
