"""Runs the model: `python tests/model --steps 15000`; with `--mutants`, each patch until it is found."""

from __future__ import annotations

import argparse
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import machine
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test


def run(steps: int, length: int, random_seed: int, shrink: bool) -> None:
    """Runs worlds of `length` steps until there are `steps` in all. Raises the first difference."""
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    # A run of hypothesis keeps what it has tried: several keep it small, and each has its own seed.
    while machine.counts["steps"] < steps:
        options = settings(
            max_examples=50, stateful_step_count=length, deadline=None, database=None, phases=phases, print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(seed(random_seed)(machine.Loads), settings=options)
        random_seed += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15000)
    parser.add_argument("--length", type=int, default=60, help="steps of one world")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shrink", action="store_true", help="shorten the steps that show a difference")
    parser.add_argument("--mutant", default="", help="a patch of mutants.py")
    options = parser.parse_args()
    machine.mutant = options.mutant
    run(options.steps, options.length, options.seed, options.shrink)


if __name__ == "__main__":
    main()
