"""Runs the model: `python tests/model --steps 15000`; with `--mutants`, each patch until it is found."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FOLDER, os.path.dirname(FOLDER)]
MUTANT_STEPS = 2000
"""In which each patch must be found: some ten minutes. They do not depend on how busy the machine is."""
FLAKY = "hypothesis.errors.Flaky"
"""Begins the names of the exceptions of hypothesis for a difference that is not there when it repeats the steps."""
RUNS = 4
"""How many such runs are tried."""
HANGING = 3600
WORLDS = 9
"""The worlds of one run of hypothesis. From ten on it would try the simplest worlds first, in which little happens."""


def run(steps: int, length: int, random_seed: int, shrink: bool) -> None:
    """Runs worlds of `length` steps until there are `steps` in all. Raises the first difference."""
    import loads
    import sequences
    from hypothesis import HealthCheck, Phase, seed, settings
    from hypothesis.stateful import run_state_machine_as_test

    while (left := steps - loads.counts["steps"]) > 0:
        options = settings(
            max_examples=min(WORLDS, -(-left // length)),
            stateful_step_count=length,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(seed(random_seed)(sequences.Sequences), settings=options)
        random_seed += 1


def find_mutants(names: list[str], first_seed: int) -> bool:
    """Runs the model with each patch until it finds a difference; prints after how long. Returns whether all were."""
    missed = []
    for name in names:
        began, random_seed, status, output = time.monotonic(), first_seed, 0, FLAKY
        while FLAKY in output and random_seed < first_seed + RUNS:
            command = [sys.executable, __file__, "--mutant", name, "--steps", str(MUTANT_STEPS), "--length", "40"]
            command += ["--seed", str(random_seed)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING, check=False)
            status, output = done.returncode, done.stdout + done.stderr
            random_seed += 1
        seconds, steps = time.monotonic() - began, re.findall(r"'steps': (\d+)", output)
        lines = [line for line in output.splitlines() if line.startswith("AssertionError")]
        is_found = bool(status and lines)
        print(f"{name:58} {'found' if is_found else 'MISSED'} {seconds:5.0f} s {steps[-1:]} {lines[-1:]}", flush=True)
        if not is_found:
            missed.append(name)
            print(output[-3000:], flush=True)
    return not missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15000)
    parser.add_argument("--length", type=int, default=60, help="steps of one world")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shrink", action="store_true", help="shorten the steps that show a difference")
    parser.add_argument("--mutant", default="", help="load with this patch of mutants.py")
    parser.add_argument("--mutants", nargs="*", help="run until each of these patches is found; without names, all")
    options = parser.parse_args()
    import loads
    import mutants

    if options.mutants is not None:
        sys.exit(not find_mutants(options.mutants or list(mutants.MUTANTS), options.seed))
    loads.mutant = options.mutant
    run(options.steps, options.length, options.seed, options.shrink)


if __name__ == "__main__":
    main()
