"""Stands before each rank's program: binds the process to its cores and memory, then becomes the program.

    python -m opforge.launch.rank --engine torchrun --slots 4 --chosen 0,1 [--bind ...] -- COMMAND [ARG ...]

It runs on the rank's own host and imports no torch: threads and memory of torch's are bound from the first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from opforge.errors import CoresError, OpforgeError

from .binding.memory_policy import set_policy
from .binding.rank_binding import SMT, Binding, Wishes, bind_cpus, bound, parse_cores
from .engines.hydra import wait_for
from .numbers import Numbers, first_host, read_numbers
from .parent_death import die_with

TOLD = "opforge-rank: "
"""Begins the line that `--tell` prints."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the rank's program; returns an exit status only where that fails, or where `--tell` was asked for."""
    asked = _parser().parse_args(arguments)
    try:
        numbers = read_numbers(asked.engine, os.environ)
        wishes = Wishes(
            asked.bind,
            parse_cores(asked.cores) if asked.cores else (),
            asked.smt,
            asked.accelerator,
            not asked.keep_threads,
        )
        binding = _binding(asked, numbers, wishes)
        environ = _environment(asked, numbers, binding, wishes.threads)
        if asked.tell:
            told = {
                "rank": numbers.rank,
                "local_rank": numbers.local_rank,
                "host": socket.gethostname(),
                **binding.told(),
            }
            sys.stdout.write(f"\n{TOLD}{json.dumps(told)}\n")
            return 0
        if asked.engine == "torchrun":
            die_with(os.getppid(), signal.SIGKILL)  # a killed torchrun cannot end it
        if binding.cpus:
            bind_cpus(binding.cpus)
        if binding.policy:
            refused = set_policy(binding.policy, binding.memory)
            if refused and numbers.local_rank == 0:  # one warning a host
                _say(f"warning: memory is not bound ({refused}); the ranks' cores are")
        if asked.engine == "hydra":
            return wait_for(asked.command, environ)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an exec would hand that on
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(asked.command[0], asked.command, environ)  # noqa: S606 (an argv list)
    except OpforgeError as problem:
        _say(f"error: {problem}")
    except OSError as problem:
        _say(f"error: {asked.command[0]!r} could not be started: {problem.strerror}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m opforge.launch.rank", allow_abbrev=False)
    parser.add_argument("--engine", required=True, choices=("torchrun", "openmpi", "hydra", "slurm"))
    parser.add_argument("--slots", type=int, help="the slots that the host's cores are shared out among")
    parser.add_argument("--chosen", default="", help="the slots of the ranks on this host, in their order")
    parser.add_argument("--bind", action="store_true")
    parser.add_argument("--cores", default="")
    parser.add_argument("--smt", choices=SMT, default="keep")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--keep-threads", action="store_true", help="leave OMP_NUM_THREADS alone")
    parser.add_argument("--master-addr", default="")
    parser.add_argument("--master-port", default="")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for the program")
    parser.add_argument("--tell", action="store_true", help="say where the rank would run, and end")
    parser.add_argument("command", nargs="+")
    return parser


def _binding(asked: argparse.Namespace, numbers: Numbers, wishes: Wishes) -> Binding:
    chosen = [int(slot) for slot in asked.chosen.split(",")] if asked.chosen else list(range(numbers.local_size))
    if numbers.local_rank >= len(chosen):
        raise CoresError(
            f"local rank {numbers.local_rank} was started on {socket.gethostname()}, which was to run {len(chosen)}",
            "Let the engine start as many processes here as the host has slots",
        )
    return bound(asked.slots or numbers.local_size, chosen, wishes, os.environ)[numbers.local_rank]


def _environment(asked: argparse.Namespace, numbers: Numbers, binding: Binding, threads: bool) -> Mapping[str, str]:
    told = {
        "RANK": numbers.rank,
        "WORLD_SIZE": numbers.size,
        "LOCAL_RANK": numbers.local_rank,
        "LOCAL_WORLD_SIZE": numbers.local_size,
        "LOCAL_SIZE": numbers.local_size,
    }
    environ = {**os.environ, **{name: str(number) for name, number in told.items()}}
    if asked.engine == "slurm":
        environ["MASTER_ADDR"] = first_host(os.environ.get("SLURM_STEP_NODELIST", "localhost"))
    if asked.master_addr:
        environ["MASTER_ADDR"] = asked.master_addr
    if asked.master_port:
        environ["MASTER_PORT"] = asked.master_port
    environ.update(dict(one.split("=", 1) for one in asked.set))
    if threads:
        environ["OMP_NUM_THREADS"] = str(binding.threads)
    return environ


def _say(text: str) -> None:
    sys.stderr.write(f"opforge launch: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
