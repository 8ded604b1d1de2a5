"""Unpacks mutated blobs, many of them: nothing escapes, nothing executes, memory and time are bounded.

    python tests/fuzz/blobs.py --count 1000000 --processes 2 [--seed 7]

Each process may use 256 MiB above what it has at its start. An audit hook sees every file that the process opens for
writing, makes, renames or removes, and every program and library that it starts. It allows the files of
one folder alone. The exit status is 1 on any violation; the blob is then kept.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support.fuzzing.fuzz_targets import load
from support.remote.mutated_blobs import Mutator

MEMORY, SECONDS = 256 << 20, 5.0
"""Limits on one process's memory, in bytes above its start, and on one blob's time."""
CHANGES = {"os.mkdir": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.chmod": 1, "os.link": 2, "os.symlink": 2}
CHANGES |= {"os.truncate": 1, "os.chown": 1, "os.utime": 1, "shutil.rmtree": 1, "shutil.move": 2}
"""Events that change files, and how many paths each has first."""
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "ctypes.dlopen", "import", "exec")
STARTS += ("pickle.find_class", "marshal.loads", "socket.connect", "os.kill")
"""Events that run code, or reach another process."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Sees what the process does to files and programs while a blob is unpacked below `root`."""

    def __init__(self, root: str) -> None:
        self.root, self.active = root, False
        self.violations: list[str] = []
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in STARTS:
            if event != "import" or arguments[1]:  # with a file, it is a module written in C
                self.violations.append(f"{event}{arguments[:2]}")
        elif event == "open":
            path, _mode, flags = arguments
            if isinstance(path, str) and isinstance(flags, int) and flags & WRITING and not self._is_inside(path):
                self.violations.append(f"{event} {path!r} for writing")
        elif event in CHANGES:
            for path in arguments[: CHANGES[event]]:
                is_name = (
                    event in ("os.remove", "os.rmdir") and isinstance(path, str) and "/" not in path
                )  # in a dir_fd
                if not is_name and not self._is_inside(path):
                    self.violations.append(f"{event} {path!r}")

    def _is_inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return True  # it was opened before: the event of that was seen
        parent = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        return parent == self.root or parent.startswith(self.root + "/")


class Worker:
    """A folder, and the blobs that are unpacked in it."""

    def __init__(self, folder: str, chance: random.Random) -> None:
        self.folder = os.path.realpath(folder)
        self.target = load("fuzz_blobs")
        valid, self.tree = self.target.packed(os.path.join(self.folder, "files"))
        self.mutator = Mutator(valid, chance)
        self.root = os.path.join(self.folder, "root")
        self.guard = Guard(self.root)
        self.refused = self.unpacked = 0
        self.slowest = 0.0
        os.makedirs(os.path.join(self.root, "tmp"))
        self.run(valid)  # imports the rest of what is imported at the first use
        self.guard.violations.clear()

    def run(self, content: bytes) -> list[str]:
        """Unpacks a blob; returns what was wrong."""
        problems, began = list[str](), time.perf_counter()
        tempfile.tempdir = os.path.join(self.root, "tmp")  # a file without a name is seen as one at its folder
        self.guard.active = True
        try:
            is_refused = bool(self.target.unpack(content, self.tree, os.path.join(self.root, "out")))
            self.refused += is_refused
            self.unpacked += not is_refused
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
        self.guard.active = False
        tempfile.tempdir = None
        seconds = time.perf_counter() - began
        self.slowest = max(self.slowest, seconds)
        if seconds > SECONDS:
            problems.append(f"it took {seconds:.1f} s")
        problems += self.guard.violations
        self.guard.violations.clear()
        shutil.rmtree(os.path.join(self.root, "out"), ignore_errors=True)
        return problems


def work(folder: str, seed: int, count: int) -> int:
    """Unpacks `count` blobs in this process, which may then not grow any more; returns the exit status."""
    worker = Worker(folder, random.Random(seed))
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, status = time.perf_counter(), 0
    for number in range(count):
        if number and number % 50_000 == 0:
            print(f"seed {seed}: {number} of {count} after {time.perf_counter() - began:.0f} s", flush=True)
        content = worker.mutator.blob()
        problems = worker.run(content)
        if problems:
            status = 1
            path = os.path.join(tempfile.gettempdir(), f"opforge-blob-{seed}-{number}.tar.zst")
            with open(path, "wb") as file:
                file.write(content)
            print(f"violation: {path}: {'; '.join(problems)[:2000]}", flush=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - started
    print(
        f"seed {seed}: {count} blobs in {time.perf_counter() - began:.0f} s, {worker.refused} refused,"
        f" {worker.unpacked - 1} unpacked; slowest {worker.slowest * 1000:.0f} ms, memory grew by {grown >> 10} MiB",
        flush=True,
    )
    return status


def main() -> int:
    """Runs the processes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    status, children = 0, []
    with tempfile.TemporaryDirectory(prefix="opforge-fuzz-") as folder:
        for number in range(options.processes):
            share = options.count // options.processes + (number < options.count % options.processes)
            child = os.fork()
            if not child:
                code = 2
                try:
                    code = work(os.path.join(folder, str(number)), options.seed + number, share)
                except BaseException:
                    traceback.print_exc()
                os._exit(code)
            children.append(child)
        for child in children:
            status = max(status, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), key=abs)
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
