"""Builds the CPU optimizers, trains a small transformer with CPUAdam and with torch's AdamW, and measures both.

    python examples/char_transformer [--steps N] [--json]

The first run starts with a cold cache and builds the ops. Later runs load them from the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import building
import corpus
import show
import steps
import torch
import training
from model import LAYERS, LENGTH, WIDTH
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from opforge.errors import OpforgeError

STEPS = 500
LARGE = [torch.Size((1 << 19,))] * 64


def main() -> int:
    """Returns the exit status: 0, or 1 if an op could not be loaded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        help=f"training steps, at least 1 (default {STEPS}); few of them also measure less",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object; all else goes to standard error")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: expected 1 or more")
    console = Console(stderr=options.json)
    try:
        measurements = run(console, options.steps)
    except OpforgeError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    if options.json:
        print(json.dumps(measurements))
    return 0


def run(console: Console, count: int) -> dict[str, object]:
    """Runs the whole demo with `count` training steps, and at most as many repetitions of what it measures.

    Returns what it measured.
    """
    began = time.perf_counter()
    show.title(console, "The CPU optimizers' ops")
    ops = building.load_all(console)
    show.ops(console, ops, os.environ.get("OPFORGE_CACHE_DIR", "the user's own"))

    text = corpus.read()
    show.title(
        console,
        f"A character transformer ({LAYERS} layers of {WIDTH}, {LENGTH} characters at a time), trained on "
        f"{len(text.codes) / 1e6:.1f} million characters of the standard library's sources ({text.files} files)",
    )
    threads = torch.get_num_threads()
    # The model's tensors are small. Threads that wait for each other at every operation nearly stop when another
    # program uses a core.
    torch.set_num_threads(1)
    curves = _train(console, text, count)
    torch.set_num_threads(threads)
    show.curves(console, curves)

    show.title(console, "Load time of CPUAdam")
    warm = building.warm_load(min(building.PROCESSES, count))
    show.loads(console, ops[0], warm)

    show.title(console, "Time of an optimizer's step")
    shapes = [param.shape for param in curves.model.parameters()]
    step_times = [
        steps.time_steps(f"the model's {len(shapes)} parameters", shapes, rounds=min(40, count), inner=10),
        steps.time_steps(f"a list of {len(LARGE)} large tensors", LARGE, rounds=min(15, count), inner=1),
    ]
    show.step_times(console, step_times, threads)
    seconds = time.perf_counter() - began
    console.print(f"\nAll of it took {seconds:.0f} s.", highlight=False)
    difference, step = curves.largest_difference()
    return {
        "ops": [op._asdict() for op in ops],
        "training": {
            "steps": count,
            "loss_cpuadam": curves.ours,
            "loss_torch_adamw": curves.torch,
            "largest_difference": difference,
            "at_step": step,
        },
        "load": {"cold": ops[0].seconds if ops[0].origin == "built" else None, "warm": warm._asdict()},
        "steps": [times._asdict() for times in step_times],
        "threads": threads,
        "seconds": seconds,
    }


def _train(console: Console, text: corpus.Corpus, count: int) -> training.Curves:
    columns = (
        TextColumn("  training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=count)

        def on_step(step: int, loss: float, other_loss: float) -> None:
            progress.update(bar, completed=step, description=f"loss {loss:.3f}, {other_loss:.3f}")

        return training.train(text, count, on_step)


if __name__ == "__main__":
    sys.exit(main())
