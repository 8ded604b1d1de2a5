"""A process that runs fio, opforge and DeepSpeed in turns, with the arguments CASE LENGTH DEEPSPEED_PYTHON."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

ROW = 4096
MEBIBYTE = 1 << 20
DEEPSPEED = """
import sys, time, torch
from deepspeed.ops.op_builder import AsyncIOBuilder
path, size, depth, verb = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
handle = AsyncIOBuilder().load().aio_handle(1 << 20, depth, False, True, 1)
tensor = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
print("ready", flush=True)
for _ in sys.stdin:
    began = time.perf_counter()
    assert (handle.sync_pread if verb == "read" else handle.sync_pwrite)(tensor, path, 0) == 1
    print("seconds", time.perf_counter() - began, flush=True)
"""


def main() -> None:
    """Prints one JSON object: samples by contender, in GB/s, or in thousands of reads a second."""
    case, length, python = sys.argv[1:4]
    words = case.split()
    in_memory = words[0] == "memory"
    size = (1024 if length == "long" and not in_memory else 256) * MEBIBYTE
    rounds = 7 if length == "long" else 5
    with tempfile.TemporaryDirectory(dir="/dev/shm" if in_memory else os.getcwd()) as folder:
        path = os.path.join(folder, "file")
        with open(path, "wb") as file:
            for _ in range(size // MEBIBYTE):
                file.write(os.urandom(MEBIBYTE))
            os.fsync(file.fileno())
        if case == "random":
            samples = _random(path, size, rounds)
        else:
            depth = 32 if in_memory else int(words[1])
            samples = _whole(path, size, rounds, words[in_memory], depth, not in_memory, python)
    print(json.dumps(samples))


def _fio(path: str, size: int, *options: str) -> dict[str, Any]:
    command = ["fio", "--output-format=json", "--name=bench", f"--filename={path}", f"--size={size}", *options]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    job: dict[str, Any] = json.loads(output)["jobs"][0]
    return job


def _whole(
    path: str, size: int, rounds: int, verb: str, depth: int, direct: bool, python: str
) -> dict[str, list[float]]:
    from opforge.builders.cpu.pin_memory import PinMemoryBuilder
    from opforge.ops import aio

    queue = aio.Queue(depth=depth)
    example = torch.empty(0, dtype=torch.uint8)
    locked = PinMemoryBuilder().load().pin_handle().new_cpu_locked_tensor(size, example)
    tensors = {"opforge, locked memory": locked, "opforge, torch's memory": torch.ones(size, dtype=torch.uint8)}
    samples: dict[str, list[float]] = {}

    def add(name: str, seconds: float) -> None:
        samples.setdefault(name, []).append(size / seconds / 1e9)

    with contextlib.ExitStack() as stack:
        rival = stack.enter_context(_deepspeed(python, path, size, depth, verb)) if python and direct else None
        for turn in range(rounds):
            for engine in ("io_uring", "libaio"):
                options = ("--bs=1M", f"--iodepth={depth}", f"--ioengine={engine}", f"--rw={verb}")
                job = _fio(path, size, *options, f"--direct={int(direct)}")
                add(f"fio {engine}", size / job[verb]["bw_bytes"])
            # The order changes with each turn: a disk's buffers favour whoever comes after another one.
            for name, tensor in [*tensors.items()][:: (1, -1)[turn % 2]]:
                began = time.perf_counter()
                (queue.read if verb == "read" else queue.write)(path, tensor).result()
                add(name, time.perf_counter() - began)
            if rival:
                add("DeepSpeed, locked memory", rival())
    return samples


@contextlib.contextmanager
def _deepspeed(python: str, path: str, size: int, depth: int, verb: str) -> Iterator[Callable[[], float]]:
    """Starts a process with DeepSpeed. Gives a function that returns the seconds of one transfer."""
    command = [python, "-c", DEEPSPEED, path, str(size), str(depth), verb]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        stdin, lines = process.stdin, process.stdout

        def until(word: str) -> str:
            for line in lines:
                if line.startswith(word):
                    return line
            raise RuntimeError("DeepSpeed's process ended: it needs libaio's headers (apt install libaio-dev)")

        def transfer() -> float:
            stdin.write("\n")
            stdin.flush()
            return float(until("seconds").split()[1])

        until("ready")
        yield transfer
        stdin.close()


def _random(path: str, size: int, rounds: int) -> dict[str, Any]:
    from opforge.builders.cpu.pin_memory import PinMemoryBuilder
    from opforge.ops import aio

    count = 32 * 1024
    queue = aio.Queue(depth=128)
    example = torch.empty(0, dtype=torch.uint8)
    locked = PinMemoryBuilder().load().pin_handle().new_cpu_locked_tensor(count * ROW, example)
    memory = {"opforge, locked memory": locked, "opforge, torch's memory": torch.ones(count * ROW, dtype=torch.uint8)}
    samples: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {"opforge": [], "fio io_uring": []}
    for _ in range(rounds):
        for engine in ("io_uring", "libaio"):
            options = ("--bs=4k", "--iodepth=128", f"--ioengine={engine}", "--rw=randread", "--direct=1")
            before = _processor_seconds(resource.RUSAGE_CHILDREN)
            job = _fio(path, size, *options, f"--io_size={count * ROW}", "--norandommap")
            samples.setdefault(f"fio {engine}", []).append(job["read"]["iops"] / 1e3)
            if engine == "io_uring":
                # Of the reads alone: fio's process also parses its options and prints a report.
                seconds = job["job_runtime"] / 1e3 * (job["usr_cpu"] + job["sys_cpu"]) / 100
                processor["fio io_uring"].append(min(seconds, _processor_seconds(resource.RUSAGE_CHILDREN) - before))
        for name, tensor in memory.items():
            offsets = torch.randint(0, size // ROW, (count,)) * ROW
            before, began = _processor_seconds(resource.RUSAGE_SELF), time.perf_counter()
            queue.read(path, tensor.view(count, ROW), offsets).result()
            samples.setdefault(name, []).append(count / (time.perf_counter() - began) / 1e3)
            if tensor is locked:
                processor["opforge"].append(_processor_seconds(resource.RUSAGE_SELF) - before)
        # As fio does: into the same 128 blocks of memory again and again, which stay in the processor's cache.
        parts = torch.randint(0, size // ROW, (count,)).mul_(ROW).split(128)
        began = time.perf_counter()
        futures = [queue.read(path, locked[: 128 * ROW].view(128, ROW), offsets) for offsets in parts]
        for future in futures:
            future.result()
        samples.setdefault("opforge, 512 KiB of memory", []).append(count / (time.perf_counter() - began) / 1e3)
    return {**samples, "processor": processor}


def _processor_seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
