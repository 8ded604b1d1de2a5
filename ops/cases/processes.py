"""Contenders that consist of several processes: the ranks of a collective, the two sides of a copy.

Each rank is a process of its own. `python -m opforge.ops.cases.processes` runs one: it prints "ready", and for each
line with a number of calls the seconds and the processor seconds of one call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pkgutil import resolve_name

from .case import Call, MissingError, Place, Seconds

SAMPLE = 0.02
"""Seconds that one sample takes at least. The ranks do not begin at the same moment, but within some 50 us."""
MOST_CALLS = 100_000
PATIENCE = 5.0
"""Seconds that a rank has to end after its input is closed."""


@dataclass(frozen=True)
class Rank:
    """A rank's view of its contender."""

    rank: int
    ranks: int
    size: int
    dtype: str
    folder: str
    """A folder that all ranks share, such as for a rendezvous."""


def in_ranks(place: Place, ranks: int, function: str, **settings: str) -> Call:
    """Starts a contender's processes. Returns a call that runs in all of them at once.

    Args:
        place: The place of the case; its stack ends the processes.
        ranks: How many processes to start.
        function: "module:name" of a function that gets a Rank and returns the rank's call.
        settings: Environment variables of the processes.

    Returns:
        A call that measures itself: the time of the slowest rank, as the mean of enough calls for SAMPLE.

    Raises:
        MissingError: A rank raised an error before it was ready; its last line is the reason.
    """
    number = sum(1 for name in os.listdir(place.folder) if name.startswith("ranks"))
    folder = os.path.join(place.folder, f"ranks{number}")
    os.mkdir(folder)
    processes: list[subprocess.Popen[str]] = []
    place.stack.callback(_end, processes)
    for rank in range(ranks):
        argument = json.dumps(asdict(Rank(rank, ranks, place.size, place.dtype, folder)))
        command = [sys.executable, "-m", "opforge.ops.cases.processes", function, argument]
        # A file: nobody reads it while the rank runs, and a full pipe would stop the rank.
        with open(_errors(folder, rank), "wb") as errors:
            process = subprocess.Popen(
                command,
                env={**os.environ, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        processes.append(process)
    for rank, process in enumerate(processes):
        _expect(process, "ready", _errors(folder, rank))

    def sample(count: int) -> Seconds:
        for process in processes:
            assert process.stdin
            with suppress(BrokenPipeError):  # the rank has failed: what it printed is raised below
                process.stdin.write(f"{count}\n")
                process.stdin.flush()
        lines = [_expect(process, "seconds", _errors(folder, rank)) for rank, process in enumerate(processes)]
        times = [[float(word) for word in line.split()[1:]] for line in lines]
        return Seconds(max(seconds for seconds, _ in times), sum(processor for _, processor in times))

    sample(1)  # it also maps memory: the second decides how many calls make a sample
    count = max(1, min(MOST_CALLS, int(SAMPLE / max(sample(1), 1e-7)) + 1))
    return lambda: sample(count)


def _errors(folder: str, rank: int) -> str:
    return os.path.join(folder, f"errors{rank}")


def _expect(process: subprocess.Popen[str], word: str, errors: str) -> str:
    """Returns the next line that begins with a word. Raises MissingError if the process ends before."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith(word):
            return line
    with open(errors, encoding="utf-8", errors="replace") as file:
        lines = file.read().strip().splitlines()
    raise MissingError(lines[-1] if lines else f"a rank ended with status {process.wait()}")


def _end(processes: list[subprocess.Popen[str]]) -> None:
    """Closes the input of all ranks, then waits for each: a rank may wait for the others before it ends."""
    for process in processes:
        for stream in (process.stdin, process.stdout):
            if stream:
                with suppress(BrokenPipeError):
                    stream.close()
    for process in processes:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Runs one rank until its input ends."""
    call = resolve_name(sys.argv[1])(Rank(**json.loads(sys.argv[2])))
    call()
    _say("ready")
    for line in sys.stdin:
        count = int(line)
        processor, began = time.process_time(), time.perf_counter()
        for _ in range(count):
            call()
        seconds = time.perf_counter() - began
        _say(f"seconds {seconds / count} {(time.process_time() - processor) / count}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
