"""One process in which AdamW's contenders step by turns: `python -m benchmarks.child_adamw CASE CONTENDER ...`."""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import torch

from . import adamw_steps
from .harness import take_turns

THREADS = 2


class Case(NamedTuple):
    """What is stepped over, and how often."""

    sizes: tuple[int, ...]
    rounds: int
    inner: int = 1
    pause: float = 0.005


CASES = {
    "large": Case((64 << 20,), 15),
    "list": Case((1000,) * 1000, 25, 5),
    "single": Case((1000,), 50, 200, 0.0),
}


def main() -> None:
    """Print one JSON object: seconds of a step by contender, and the bytes that a step must move."""
    name, *contenders = sys.argv[1:]
    case = CASES[name]
    torch.set_num_threads(THREADS)
    memory = adamw_steps.make(case.sizes)
    low = adamw_steps.make(case.sizes, torch.bfloat16) if any(one.endswith(":bf16") for one in contenders) else memory
    steps = {}
    for contender in contenders:
        who, _, dtype = contender.partition(":")
        steps[contender] = adamw_steps.CONTENDERS[who](low if dtype else memory)
    samples = take_turns(steps, case.rounds, warmup=3, inner=case.inner, pause=case.pause)
    print(json.dumps({"samples": samples, "traffic": memory.traffic, "low_traffic": low.traffic}))


if __name__ == "__main__":
    main()
