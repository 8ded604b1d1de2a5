"""Imports mutated archives, many of them: nothing escapes, nothing executes, memory and time are bounded.

    python tests/fuzz/archives.py --count 1000000 --processes 2 [--seed 7]

Each process may use 256 MiB above what it has at its start. An audit hook sees every file that the process opens for
writing, makes, renames or removes, and every program and library that it starts. It allows the store's files alone.
What an import publishes must be intact. The exit status is 1 on any violation; the archive is then kept.
"""

from __future__ import annotations

import argparse
import codecs
import logging
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

from support.store.fake_store import ME, FakeStore
from support.store.mutated_archives import Mutator

from opforge.cache import current
from opforge.cache.layout import Layout
from opforge.cache.maintenance import listing, verify
from opforge.cache.transfer import archive
from opforge.errors import ArchiveError

MEMORY, SECONDS = 256 << 20, 5.0
"""Limits on one process's memory, in bytes above its start, and on one archive's time."""
CHANGES = {"os.mkdir": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.chmod": 1, "os.link": 2, "os.symlink": 2}
CHANGES |= {"os.truncate": 1, "os.chown": 1, "os.utime": 1, "shutil.rmtree": 1, "shutil.move": 2}
"""Events that change files, and how many paths each has first."""
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "ctypes.dlopen", "import", "exec")
STARTS += ("pickle.find_class", "marshal.loads", "socket.connect", "os.kill")
"""Events that run code, or reach another process."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Sees what the process does to files and programs while `path` is being imported into `root`."""

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
    """A folder with a store, and the archives that are imported into it."""

    def __init__(self, folder: str, chance: random.Random) -> None:
        self.folder = os.path.realpath(folder)
        source = FakeStore(os.path.join(self.folder, "exported"), os.path.join(self.folder, "src"))
        path = os.path.join(self.folder, "valid.tar")
        archive.export(source.layout, [source.add("relu", size=700), source.add("x" * 90, size=1100)], path)
        with open(path, "rb") as file:
            self.mutator = Mutator(file.read(), chance)
        self.root = os.path.join(self.folder, "store")
        self.layout = Layout(self.root)
        self.path = os.path.join(self.folder, "input.tar")
        self.guard = Guard(self.root)
        self.refused = self.imported = 0
        self.slowest = 0.0
        self._empty()
        for name in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le"):
            codecs.lookup(name)  # json recognizes them, and the guard must not see how Python loads them
        self.run(self.mutator.content)  # imports the rest of what is imported at the first use
        self.guard.violations.clear()

    def _empty(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        current.prepare(self.root, ME)

    def run(self, content: bytes) -> list[str]:
        """Imports an archive; returns what was wrong."""
        with open(self.path, "wb") as file:
            file.write(content)
        problems, published, began = list[str](), 0, time.perf_counter()
        self.guard.active = True
        try:
            published = len(archive.unpack(self.layout, self.path, ME))
            self.imported += 1
        except ArchiveError as error:
            published = error.kept
            self.refused += 1
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
        self.guard.active = False
        seconds = time.perf_counter() - began
        self.slowest = max(self.slowest, seconds)
        if seconds > SECONDS:
            problems.append(f"it took {seconds:.1f} s")
        problems += self.guard.violations
        self.guard.violations.clear()
        if os.listdir(self.layout.path("staging")):
            problems.append("something is left in staging")
        entries = os.listdir(self.layout.path("entries"))
        if len(entries) > published:
            problems.append(f"{len(entries)} entries were published, and {published} reported")
        if entries:
            problems += [entry.problem for entry in verify.verify(self.layout, ME) if entry.problem]
            listing.entries(self.layout)
        if entries or problems:
            self._empty()
        return problems


def work(folder: str, seed: int, count: int) -> int:
    """Imports `count` archives in this process, which may then not grow any more; returns the exit status."""
    logging.getLogger("opforge").setLevel(logging.CRITICAL)
    worker = Worker(folder, random.Random(seed))
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, status = time.perf_counter(), 0
    for number in range(count):
        if number and number % 50_000 == 0:
            print(f"seed {seed}: {number} of {count} after {time.perf_counter() - began:.0f} s", flush=True)
        content = worker.mutator.archive()
        problems = worker.run(content)
        if problems:
            status = 1
            path = os.path.join(tempfile.gettempdir(), f"opforge-archive-{seed}-{number}.tar")
            with open(path, "wb") as file:
                file.write(content)
            print(f"violation: {path}: {'; '.join(problems)[:2000]}", flush=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - started
    print(
        f"seed {seed}: {count} archives in {time.perf_counter() - began:.0f} s, {worker.refused} refused,"
        f" {worker.imported - 1} imported; slowest {worker.slowest * 1000:.0f} ms, memory grew by {grown >> 10} MiB",
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
