"""Runs before each rank's program: binds the process to its cores and memory, then becomes the program.

    python -m opforge.launch.rank --engine torchrun --slots 4 --chosen 0,1 [--bind ...] -- COMMAND [ARG ...]

It runs on the rank's own host. It does not import torch, so that torch's threads and memory are bound from the start.
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

from .bind_options import SMT, BindOptions
from .binding.memory_policy import set_policy
from .binding.rank_binding import Binding, bind_cpus, chosen_bindings
from .core_list import parse_core_list
from .engines.hydra import run_program
from .numbers import Numbers, first_host, read_numbers
from .parent_death import signal_on_parent_death
from .protocol import RANK_MARK


def main(arguments: Sequence[str] | None = None) -> int:
    """Becomes the rank's program. Returns an exit status only if that fails, under hydra, and with `--report`."""
    args = _parser().parse_args(arguments)
    try:
        numbers = read_numbers(args.engine, os.environ)
        core_list = parse_core_list(args.cores) if args.cores else ()
        options = BindOptions(args.bind, core_list, args.smt, args.accelerator, not args.keep_threads)
        binding = _binding(args, numbers, options)
        environ = _environment(args, numbers, binding, options.set_threads)
        if args.report:
            numbering = {"rank": numbers.rank, "local_rank": numbers.local_rank, "host": socket.gethostname()}
            sys.stdout.write(f"\n{RANK_MARK}{json.dumps({**numbering, **binding.as_row()})}\n")
            return 0
        if args.engine == "torchrun":
            signal_on_parent_death(os.getppid(), signal.SIGKILL)  # a torchrun that is killed cannot end its ranks
        if binding.cpus:
            bind_cpus(binding.cpus)
        if binding.policy:
            problem = set_policy(binding.policy, binding.memory)
            if problem and numbers.local_rank == 0:  # one warning a host
                _write(f"warning: memory is not bound: {problem}. The ranks' cores are bound.")
        if args.engine == "hydra":
            return run_program(args.command, environ)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps ignored signals ignored
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(args.command[0], args.command, environ)  # noqa: S606 (an argv list)
    except OpforgeError as error:
        _write(f"error: {error}")
    except OSError as error:
        _write(f"error: {args.command[0]!r} could not be started: {error.strerror}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m opforge.launch.rank", allow_abbrev=False)
    parser.add_argument("--engine", required=True, choices=("torchrun", "openmpi", "hydra", "slurm"))
    parser.add_argument("--slots", type=int, help="how many slots share the host's cores")
    parser.add_argument("--chosen", default="", help="the slots of the ranks on this host, in the ranks' order")
    parser.add_argument("--bind", action="store_true")
    parser.add_argument("--cores", default="")
    parser.add_argument("--smt", choices=SMT, default="keep")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--keep-threads", action="store_true", help="do not set OMP_NUM_THREADS")
    parser.add_argument("--master-addr", default="")
    parser.add_argument("--master-port", default="")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for the program")
    parser.add_argument("--report", action="store_true", help="print where the rank would run, and exit")
    parser.add_argument("command", nargs="+")
    return parser


def _binding(args: argparse.Namespace, numbers: Numbers, options: BindOptions) -> Binding:
    chosen = [int(slot) for slot in args.chosen.split(",")] if args.chosen else list(range(numbers.local_size))
    if numbers.local_rank >= len(chosen):
        raise CoresError(
            f"local rank {numbers.local_rank} was started on {socket.gethostname()}, where {len(chosen)} were planned",
            "Let the engine start as many processes here as the host has slots",
        )
    return chosen_bindings(args.slots or numbers.local_size, chosen, options, os.environ)[numbers.local_rank]


def _environment(args: argparse.Namespace, numbers: Numbers, binding: Binding, set_threads: bool) -> Mapping[str, str]:
    variables = {
        "RANK": numbers.rank,
        "WORLD_SIZE": numbers.size,
        "LOCAL_RANK": numbers.local_rank,
        "LOCAL_WORLD_SIZE": numbers.local_size,
        "LOCAL_SIZE": numbers.local_size,
    }
    environ = {**os.environ, **{name: str(number) for name, number in variables.items()}}
    if args.engine == "slurm":
        environ["MASTER_ADDR"] = first_host(os.environ.get("SLURM_STEP_NODELIST", "localhost"))
    if args.master_addr:
        environ["MASTER_ADDR"] = args.master_addr
    if args.master_port:
        environ["MASTER_PORT"] = args.master_port
    environ.update(dict(assignment.split("=", 1) for assignment in args.set))
    if set_threads:
        environ["OMP_NUM_THREADS"] = str(binding.threads)
    return environ


def _write(text: str) -> None:
    sys.stderr.write(f"opforge launch: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
