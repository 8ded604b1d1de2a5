"""Runs a function of a test file as the ranks of a job, each in a process of its own.

The processes are forked from a server that has imported torch, so that one costs milliseconds.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

PRELOADED = [
    "pytest",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "opforge.ops.shm.process_group",
    "opforge.builders.cpu.share_mem_comm",
]


class Ranks:
    """The ranks of a job: each calls `function(rank, size, store, *arguments)`, where `store` is a file's path."""

    def __init__(self, function: Callable[..., Any], size: int, folder: Any, *arguments: Any, name: str = "meeting"):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.processes, self.connections = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            place = function.__code__.co_filename, function.__name__
            call = (rank, size, str(folder / name), *arguments)
            process = context.Process(target=serve, args=(theirs, dict(os.environ), [*sys.path], place, call))
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)

    def report(self, rank: int, timeout: float = 60) -> Any:
        """Returns what a rank reports next, or the exception that ended it; None if it was killed."""
        if not self.connections[rank].poll(timeout):
            raise AssertionError(f"rank {rank} reported nothing within {timeout} seconds")
        try:
            return self.connections[rank].recv()
        except (EOFError, ConnectionResetError):
            return None

    def send(self, rank: int, value: Any = None) -> None:
        """Sends a value to a rank, which receives it from `connection`."""
        self.connections[rank].send(value)

    def results(self, timeout: float = 60) -> list[Any]:
        """Returns what each rank's function returned or raised, after all have ended."""
        try:
            outcomes = [self.report(rank, timeout) for rank in range(len(self.processes))]
            for process in self.processes:
                process.join(timeout)
            return outcomes
        finally:
            self.end()

    def end(self) -> None:
        """Kills what still runs."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()


def run(function: Callable[..., Any], size: int, folder: Any, *arguments: Any, timeout: float = 60) -> list[Any]:
    """Returns what each rank returned. Raises the exception of the first that raised one."""
    outcomes = Ranks(function, size, folder, *arguments).results(timeout)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


connection: Connection
"""A rank's own, to its test."""


def serve(theirs: Connection, environment: dict[str, str], path: list[str], place: Any, call: Any) -> None:
    """Runs in the rank's process."""
    global connection
    connection = theirs
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)
    try:
        spec = importlib.util.spec_from_file_location("test_of_ranks", place[0])
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        outcome = getattr(module, place[1])(*call)
    except BaseException as error:
        traceback.print_exc()
        outcome = error
    connection.send(outcome)
