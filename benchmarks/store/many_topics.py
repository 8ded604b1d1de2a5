"""What do finding one, listing and collecting cost in a store that holds many topics?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.scratch import Scratch, only_when_long
from opforge.bench.harness import Report, ratio, scaled, take_turns

from .filled_topics import Patterns, fill, write_patterns

FEW, MANY, LONG = 10, 5_000, 100_000
ROUNDS, FINDS, FINDS_AT_ONCE = 3, 40, 10
OURS, WALK, READ = "gc", "walk", "walk that reads"
LIST_MB, GC_TIMES = 100, 2


def run(scratch: Scratch) -> Report:
    """Fills two stores, and asks the same of both."""
    report = Report(
        "a store in a folder, one of ten topics a package's: finding one by its name, the lines of `opforge ls URL`,"
        " and what `opforge gc URL` looks at that finds nothing to remove",
        "bare Python that walks over the store's files and gets their sizes; that also reads what states something",
    )
    size = LONG if scratch.long else MANY
    if not scratch.long:
        report.left_out.append(only_when_long(f"{LONG} topics"))
    pattern, now = scratch.new_folder("pattern"), time.time()
    write_patterns(scratch, pattern)
    folders = {count: scratch.new_folder(f"topics-{count}") for count in (FEW, size)}
    names = {count: fill(folder, Patterns(pattern), count, now) for count, folder in folders.items()}
    _find(report, folders, names)
    _list(report, scratch, folders)
    _collect(report, folders[size], size)
    return report


def _find(report: Report, folders: dict[int, str], names: dict[int, list[tuple[str, str]]]) -> None:
    from opforge.remote import contents
    from opforge.remote.stores import open_store

    def finding(count: int) -> Callable[[], object]:
        store, (kind, topic) = open_store(f"file://{folders[count]}"), names[count][-1]

        def find() -> None:
            assert len(list(contents.of_name(store, kind, topic))) == 1

        return find

    samples = take_turns({f"among {count}": finding(count) for count in folders}, FINDS, inner=FINDS_AT_ONCE)
    table = report.table("Finding a topic", "ms")
    for name, times in samples.items():
        table.add(name, scaled(times, 1e3))
    few, many = samples.values()
    # The shortest: one call takes so little time that other load on the machine decides about the median.
    report.figure("finding one among many", min(many) / min(few), f"times that among {FEW}", 1.1)


def _list(report: Report, scratch: Scratch, folders: dict[int, str]) -> None:
    first: dict[int, list[float]] = {count: [] for count in folders}
    memory = dict[int, int]()
    for _turn in range(ROUNDS):
        for count, folder in folders.items():
            began = time.perf_counter()
            command = [sys.executable, "-m", "opforge", "ls", f"file://{folder}"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, env=scratch.environment())
            assert process.stdout
            lines = [process.stdout.readline(), process.stdout.readline()]
            first[count].append(time.perf_counter() - began)
            number = len(lines) + sum(1 for _line in process.stdout)
            _pid, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode or number != count + 1:
                raise AssertionError(f"{number} lines of {count} topics, exit code {process.returncode}")
            memory[count] = max(memory.get(count, 0), usage.ru_maxrss << 10)
    table = report.table("`opforge ls URL` until the first topic is printed, the whole process", "ms")
    for count, times in first.items():
        table.add(f"{count} topics", scaled(times, 1e3))
    few, many = first
    report.figure("the first line", ratio(first[many], first[few]), f"times that of {few} topics", 1.5)
    report.figure("memory of that process", memory[many] / 2**20, "MB", LIST_MB)


def _collect(report: Report, folder: str, size: int) -> None:
    from opforge.remote import gc
    from opforge.remote.stores import open_store

    def collect() -> None:
        if unneeded := list(gc.unused(open_store(f"file://{folder}"), time.time())):
            raise AssertionError(f"{unneeded[0]} is needed")

    contenders = {OURS: collect, WALK: lambda: _walk(folder, ()), READ: lambda: _walk(folder, ("topics", "statements"))}
    samples = take_turns(contenders, ROUNDS)
    table = report.table(f"Collecting, {size} topics", "ms", against=(WALK, READ))
    for name, times in samples.items():
        table.add(name, scaled(times, 1e3), "" if name == OURS else "ceiling")
    report.figure("gc", ratio(samples[OURS], samples[WALK]), "times a bare walk over the files", GC_TIMES)
    report.figure("gc", ratio(samples[OURS], samples[READ]), "times a walk that reads what it must read")


def _walk(folder: str, reads: tuple[str, ...], is_read: bool = False) -> int:
    """Returns the bytes of all files below a folder; those below folders named in `reads` are read."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                total += _walk(entry.path, reads, is_read or entry.name in reads)
            elif is_read:
                with open(entry.path, "rb") as file:
                    total += len(file.read())
            else:
                total += entry.stat(follow_symlinks=False).st_size
    return total
